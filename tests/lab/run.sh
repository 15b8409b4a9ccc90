#!/bin/bash
# run.sh [quick|full] [pytest arguments]: up, the lab's tests, down.  LAB_KEEP=1 leaves the
# lab up.  The exit status is pytest's.
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
TIER=${1:-quick}; shift || true
case $TIER in quick | full) ;; *) fail "tier is quick or full, not '$TIER'" ;; esac

finish() {
  local status=$?
  [ $status = 0 ] || say "failed; logs are in $LAB_DIR/log"
  [ -n "${LAB_KEEP:-}" ] || "$LAB_SRC/down.sh" --purge
  say "done, exit status $status"
}
trap finish EXIT
"$LAB_SRC/up.sh" "$TIER"
say "tests"
cd "$LAB_ROOT"
rm -f "$LAB_DIR/log/times.txt"
LAB_TIER=$TIER "$LAB_VENV/bin/pytest" -m lab tests/lab "$@"
say "medians, end to end and by whose time it is:"
cat "$LAB_DIR/log/times.txt"
