#!/bin/bash
# bench_nova.sh [--full]: the tier with Nova, an attach and a detach of it beside ours in turns, row 17 of
# docs/benchmarks.md.  LAB_KEEP=1 leaves the lab up.  Root, Debian 12.
. "$(dirname "$0")/nova/env.sh"; . "$LAB_SRC/lib.sh"

finish() { # however it ends: a signal, too
  local status=$?
  trap - EXIT
  [ -n "${LAB_KEEP:-}" ] || "$LAB_SRC/down.sh" --purge || status=1
  exit $status
}

cd "$LAB_ROOT"
trap 'exit 1' INT TERM HUP
trap finish EXIT
"$LAB_SRC/up.sh" nova
"$LAB_VENV/bin/python" -m tests.benchmarks --write docs "$@" nova
