#!/bin/bash
# run.sh [pytest options]: `make lab TIER=fabric`: image, VM, Cinder, service and agent; the tests; down.
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

contracts() { # of storage, against the VM's kernel; before anything of Cinder's is there
  vm "cd /opt/project && PYTHONPATH=/opt/pytest LEDGER_LAB_KERNEL=1 /opt/agent/bin/python -m pytest -c /dev/null \
    --rootdir . --import-mode=importlib --noconftest -p no:cacheprovider -q --durations=5 -W ignore tests/contracts/test_block.py"
}

flows() {
  local status=0
  LAB_TIER=fabric "$LAB_VENV/bin/pytest" -m lab --durations=0 "$FAB_SRC" "${OPTIONS[@]}" || status=$?
  [ $status = 0 ] || { [ $status = 5 ] && [ ${#OPTIONS[@]} -gt 0 ]; } || return $status
}

down() { # fails if something is left
  "$FAB_SRC/ledger.sh" down && "$FAB_SRC/vm.sh" down || return 1
  find "$LAB_DIR" -mindepth 1 -maxdepth 1 ! -name guest ! -name image ! -name log -exec rm -rf {} +
}

finish() { # however it ends: a signal, too
  trap - EXIT
  [ $FAILED = 0 ] || say "failed; logs are in $LAB_DIR/log"
  if running vm >/dev/null; then vm 'cd /var/log && tar -cf - agent.log cinder.log' 2>/dev/null | tar -C "$LAB_DIR/log" -xf - || true; fi
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
stage contracts contracts || true
stage cinder "$FAB_SRC/cinder.sh" || exit
stage ledger "$FAB_SRC/ledger.sh" up || exit
stage flows flows || true
stage rules "$LAB_VENV/bin/attachment-ledger" event verify --rules --config "$LAB_DIR/etc/ledger.toml" || true
