#!/bin/bash
# conformance.sh [PART ...]: the tests of tempest and openstacksdk that attach volumes or act on servers,
# against the lab's quick tier with a Glance; then docs/conformance.md (conformance/judge.py).  With
# parts, only those whose id has one of them in it, and the page stays.  Fails if a test that passes in
# the page does not any more, or one that does not pass has no reason.  LAB_KEEP=1 leaves the lab up.
# Root, Debian 12.
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
VENV=$LAB_DIR/venv-conformance RESULTS=$LAB_DIR/log/conformance.jsonl

finish() { # however it ends: a signal, too
  local status=$?
  trap - EXIT
  [ -n "${LAB_KEEP:-}" ] || "$LAB_SRC/down.sh" --purge || status=1
  exit $status
}

run_tests() { # part...
  export TEMPEST_CONFIG_DIR="$LAB_DIR/etc" TEMPEST_CONFIG=tempest.conf
  export OS_CLOUD=admin OPENSTACKSDK_OPERATOR_CLOUD=admin OPENSTACKSDK_SYSTEM_ADMIN_CLOUD=admin
  export OPENSTACKSDK_DEMO_CLOUD=member OPENSTACKSDK_DEMO_CLOUD_ALT=stranger
  export OPENSTACKSDK_FLAVOR OPENSTACKSDK_IMAGE=lab PYTHONWARNINGS=ignore
  export OS_TEST_TIMEOUT=300 # s; openstacksdk's own is for tests that ask nobody
  OPENSTACKSDK_FLAVOR=$(sed -n 's/^flavor_ref = //p' "$LAB_DIR/etc/tempest.conf")
  rm -f "$RESULTS"
  "$VENV/bin/python" "$LAB_SRC/conformance/run.py" "$RESULTS" "$@"
}

cd "$LAB_ROOT"
export LAB_DETACH_ATTEMPTS=20 # tests do not wait for a guest to have booted
trap 'exit 1' INT TERM HUP
trap finish EXIT
"$LAB_SRC/up.sh" quick
say "installing tempest, openstacksdk and Glance"
venv "$VENV" "$LAB_SRC/requirements-conformance.txt"
"$LAB_SRC/glance.sh" fill
say "Glance"; "$LAB_SRC/glance.sh" up
"$LAB_VENV/bin/python" -m tests.lab.conformance.prepare
say "the tests"; run_tests "$@"
"$LAB_VENV/bin/python" -m tests.lab.conformance.judge "$RESULTS" "$@"
