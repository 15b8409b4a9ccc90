#!/bin/bash
# run.sh [pytest options]: failovers of PostgreSQL under Patroni below a ledger.  Root, Debian 12; 40 min.
set -euo pipefail
cd "$(dirname "$0")/../.."
( # the lab's settings are for its own tests
  . tests/lab/env.sh; . "$LAB_SRC/lib.sh"
  packages etcd-server haproxy iproute2 postgresql python3-venv
  LAB_PYTHON=/usr/bin/python3 # PostgreSQL's user, who runs it, may not enter root's home
  venv /var/tmp/attachment-ledger-patroni tests/ha/requirements.txt
)
exec .venv/bin/pytest -n 0 -m lab -s -p no:cacheprovider tests/ha "$@"
