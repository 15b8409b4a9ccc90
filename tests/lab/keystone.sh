#!/bin/bash
# keystone.sh up|down: a real Keystone (SQLite, Fernet) in an environment of its own, on loopback.
# `up.sh` does not start it: nothing of the lab needs it but the contract (tests/contracts/test_keystone.py).
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
KVENV=${LAB_KEYSTONE_VENV:-$LAB_DIR/venv-keystone} K=$LAB_DIR/keystone
URL="http://127.0.0.1:$LAB_KEYSTONE_PORT/v3"

configure() {
  mkdir -p "$K"/{fernet,credential}-keys; chmod 700 "$K"/{fernet,credential}-keys
  # Without its cache a validation takes a second: roles that imply others are read row by row.
  cat >"$K/keystone.conf" <<CONF
[DEFAULT]
log_dir =
use_stderr = true
[database]
connection = sqlite:///$K/keystone.sqlite
[token]
provider = fernet
[fernet_tokens]
key_repository = $K/fernet-keys
[credential]
key_repository = $K/credential-keys
[cache]
enabled = true
backend = dogpile.cache.memory
CONF
}

manage() { "$KVENV/bin/keystone-manage" --config-file "$K/keystone.conf" "$@" >>"$LAB_DIR/log/keystone-manage.log" 2>&1; }

fill() { # its tables, keys and first administrator, once
  [ ! -e "$K/filled" ] || return 0
  manage db_sync
  manage fernet_setup --keystone-user "$(id -un)" --keystone-group "$(id -gn)"
  manage credential_setup --keystone-user "$(id -un)" --keystone-group "$(id -gn)"
  manage bootstrap --bootstrap-password "$LEDGER_LAB_KEYSTONE_PASSWORD" --bootstrap-region-id RegionOne \
    --bootstrap-public-url "$URL" --bootstrap-internal-url "$URL" --bootstrap-admin-url "$URL"
  touch "$K/filled"
}

case ${1:-} in
  up)
    port_free keystone "$LAB_KEYSTONE_PORT" LAB_KEYSTONE_PORT
    venv "$KVENV" "$LAB_SRC/requirements-keystone.txt"
    configure; fill
    OS_KEYSTONE_CONFIG_FILES="$K/keystone.conf" spawn keystone \
      "$KVENV/bin/python" "$LAB_SRC/keystone_server.py" "$LAB_KEYSTONE_PORT"
    wait_port keystone "$LAB_KEYSTONE_PORT"
    say "Keystone: LEDGER_LAB_KEYSTONE=$URL $LAB_VENV/bin/pytest -m lab tests/contracts/test_keystone.py" ;;
  down) stop keystone ;;
  *) fail "usage: keystone.sh up|down" ;;
esac
