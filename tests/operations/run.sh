#!/bin/bash
# run.sh [pytest options]: `make lab TIER=operations`: docs/operations.md, typed in bare machines of Debian 12.
# LAB_KEEP=1 leaves the machines' base and what was written to them.  Root, Debian 12.
set -euo pipefail
cd "$(dirname "$0")/../.."
export DEBIAN_FRONTEND=noninteractive
missing=()
for each in systemd-nspawn=systemd-container mmdebstrap=mmdebstrap nft=nftables ip=iproute2 \
  pkg-config=pkg-config gcc=gcc openssl=openssl; do
  command -v "${each%%=*}" >/dev/null || missing+=("${each#*=}")
done
pkg-config --exists libvirt 2>/dev/null || missing+=(libvirt-dev python3-dev)
((${#missing[@]} == 0)) || apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null
make deb
exec .venv/bin/pytest -n 0 -m lab -s -p no:cacheprovider -o faulthandler_timeout=7200 tests/operations "$@"
