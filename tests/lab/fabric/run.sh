#!/bin/bash
# run.sh [pytest options]: `make lab TIER=fabric`: image, VMs, Cinder, service and agents; the tests; down.
# The exit status is 0 if all tests passed and nothing was left behind.  LAB_KEEP=1 leaves it up.
. "$(dirname "$0")/env.sh"
OPTIONS=("$@") SUMMARY=() FAILED=0

stage() { # name command...: remember how it went and how long it took
  local name=$1 began=$SECONDS outcome=ok; shift
  say "$name: $*"
  "$@" || { outcome="FAILED ($?)"; FAILED=1; }
  SUMMARY+=("$(printf '%-10s %-12s %4d s' "$name" "$outcome" $((SECONDS - began)))")
  [ "$outcome" = ok ]
}

boot() { "$FAB_SRC/vm.sh" up && "$FAB_SRC/vm.sh" put; }
second() { FAB_VM=2 boot; }

ledger() { # both agents at once: to import what they need is the most of it
  "$FAB_SRC/ledger.sh" up || return 1
  FAB_VM=2 "$FAB_SRC/ledger.sh" agent & local second=$!
  "$FAB_SRC/ledger.sh" agent && wait $second
}

contracts() { # of storage, against the kernel of a VM of their own, while the flows run
  export FAB_VM=3
  boot && "$FAB_SRC/vm.sh" run "cd /opt/project && PYTHONPATH=/opt/pytest LEDGER_LAB_KERNEL=1 /opt/agent/bin/python -m pytest -c /dev/null \
    --rootdir . --import-mode=importlib --noconftest -p no:cacheprovider -q --durations=5 -W ignore tests/contracts/test_block.py" </dev/null &&
    "$FAB_SRC/vm.sh" down
}

contracted() { # what they said
  local status=0
  wait "$CONTRACTS" || status=$?
  cat "$LAB_DIR/log/contracts.log"; return $status
}

flows() {
  local status=0
  LAB_TIER=fabric "$LAB_VENV/bin/pytest" -m lab -o faulthandler_timeout=3600 --durations=0 "$FAB_SRC" "${OPTIONS[@]}" || status=$?
  [ $status = 0 ] || { [ $status = 5 ] && [ ${#OPTIONS[@]} -gt 0 ]; } || return $status
}

down() { # fails if something is left
  local number
  "$FAB_SRC/ledger.sh" down && "$FAB_SRC/cinder.sh" down || return 1
  for number in 3 2 1; do FAB_VM=$number "$FAB_SRC/vm.sh" down || return 1; done
  find "$LAB_DIR" -mindepth 1 -maxdepth 1 ! -name 'venv*' ! -name guest ! -name image ! -name log -exec rm -rf {} +
}

logs() { # number
  running "vm-$1" >/dev/null || return 0
  mkdir -p "$LAB_DIR/log/vm-$1"
  FAB_VM=$1 "$FAB_SRC/vm.sh" run 'cd /var/log && tar -cf - agent.log libvirt' |
    tar -C "$LAB_DIR/log/vm-$1" -xf - || true
}

finish() { # however it ends: a signal, too
  trap - EXIT
  [ -z "${CONTRACTS:-}" ] || kill "$CONTRACTS" 2>/dev/null || true
  [ $FAILED = 0 ] || say "failed; logs are in $LAB_DIR/log"
  logs 1; logs 2
  [ -n "${LAB_KEEP:-}" ] || stage down down || true
  printf '\n=== lab, fabric (%d s)\n' $SECONDS
  printf '%s\n' "${SUMMARY[@]}"
  exit $FAILED
}

cd "$LAB_ROOT"
trap 'FAILED=1; exit' INT TERM HUP
trap finish EXIT
stage image "$FAB_SRC/build.sh" || exit
stage boot boot || exit
contracts >"$LAB_DIR/log/contracts.log" 2>&1 &
CONTRACTS=$!
stage second second || exit
stage cinder "$FAB_SRC/cinder.sh" up || exit
stage ledger ledger || exit
stage flows flows || true
stage contracts contracted || true
stage rules "$LAB_VENV/bin/attachment-ledger" event verify --rules --config "$LAB_DIR/etc/ledger.toml" || true
