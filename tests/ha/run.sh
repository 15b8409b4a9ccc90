#!/bin/bash
# run.sh [pytest options]: failovers of PostgreSQL under Patroni below a ledger.  Root, Debian 12; 40 min.
set -euo pipefail
cd "$(dirname "$0")/../.."
export DEBIAN_FRONTEND=noninteractive
missing=()
for each in patroni=patroni etcd=etcd-server haproxy=haproxy ip=iproute2 setpriv=util-linux; do
  command -v "${each%%=*}" >/dev/null || missing+=("${each#*=}")
done
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || missing+=(postgresql)
# PostgreSQL's package and etcd's start a server each; here they are started by the tests.
((${#missing[@]} == 0)) || {
  apt-get install -qq --yes --no-install-recommends "${missing[@]}"
  for each in etcd patroni haproxy postgresql; do service "$each" stop || true; done
} >/dev/null 2>&1
exec .venv/bin/pytest -n 0 -m lab -s -p no:cacheprovider tests/ha "$@"
