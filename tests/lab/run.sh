#!/bin/bash
# run.sh [quick|full|nova|fabric|ha|operations] [pytest options]: up, the tests, down, and how long each took.
# The exit status is 0 if all tests passed and nothing was left behind.  LAB_KEEP=1 leaves
# the lab up.  Root, Debian 12.
case ${1:-} in # those without this lab's cloud
  fabric) exec "$(dirname "$0")/fabric/run.sh" "${@:2}" ;;
  ha) exec "$(dirname "$0")/../ha/run.sh" "${@:2}" ;;
  operations) exec "$(dirname "$0")/../operations/run.sh" "${@:2}" ;;
esac
[ "${1:-}" != nova ] || . "$(dirname "$0")/nova/env.sh"
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
TIER=${1:-quick}; shift || true
OPTIONS=("$@")
case $TIER in quick | full | nova) ;; *) fail "the tier is quick, full or nova, not '$TIER'" ;; esac
SUMMARY=() FAILED=0

stage() { # name command...: remember how it went and how long it took
  local name=$1 began=$SECONDS outcome=ok; shift
  say "$name: $*"
  "$@" || { outcome="FAILED ($?)"; FAILED=1; }
  SUMMARY+=("$(printf '%-10s %-12s %4d s' "$name" "$outcome" $((SECONDS - began)))")
  [ "$outcome" = ok ]
}

tests() { # directory: no test selected is no failure if options were given
  local status=0
  LAB_TIER=$TIER "$LAB_VENV/bin/pytest" -m lab --durations=5 "$LAB_ROOT/tests/$1" "${OPTIONS[@]}" ||
    status=$?
  [ $status = 0 ] || { [ $status = 5 ] && [ ${#OPTIONS[@]} -gt 0 ]; } || return $status
}

finish() { # however it ends: a signal, too
  trap - EXIT
  [ $FAILED = 0 ] || say "failed; logs are in $LAB_DIR/log"
  [ -n "${LAB_KEEP:-}" ] || stage down "$LAB_SRC/down.sh" --purge || true
  if [ -s "$LAB_DIR/log/times.txt" ]; then printf '\n'; cat "$LAB_DIR/log/times.txt"; fi
  printf '\n=== lab, %s (%d s)\n' "$TIER" $SECONDS
  printf '%s\n' "${SUMMARY[@]}"
  exit $FAILED
}

cd "$LAB_ROOT"
trap 'FAILED=1; exit' INT TERM HUP
trap finish EXIT
if ! running cinder >/dev/null; then
  # No test expects the state of a run that was cut short, by a failure of power say.
  [ -z "$(ls "$LAB_DIR/run")" ] || "$LAB_SRC/down.sh" --purge
  find "$LAB_DIR/log" -type f -delete
fi
rm -f "$LAB_DIR/log/times.txt"
stage up "$LAB_SRC/up.sh" "$TIER" || exit
if [ "$TIER" = nova ]; then stage survey tests lab/nova || true; exit; fi
stage contracts tests contracts || true
stage flows tests lab || true
# All that the tests above made the ledger write breaks none of its rules.
stage rules "$LAB_VENV/bin/attachment-ledger" event verify --rules \
  --config "$LAB_DIR/etc/ledger.toml" || true
