#!/bin/bash
# keystone.sh fill|up|down: a real Keystone (SQLite, Fernet) in an environment of its own, with the
# lab's users and catalog (keystone_cloud.py).  `fill` makes all that needs no server; `up` needs the
# address that hosts.sh brings, by which agents in other namespaces reach it, too.
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
VENV=$LAB_DIR/venv-keystone K=$LAB_DIR/keystone

configure() {
  mkdir -p "$K"/{fernet,credential}-keys; chmod 700 "$K"/{fernet,credential}-keys
  # Without its cache a validation takes a second: roles that imply others are read row by row.
  # As little is made of passwords as bcrypt can: else each log-in takes most of a second.
  cat >"$K/keystone.conf" <<CONF
[DEFAULT]
log_dir =
use_stderr = true
[database]
connection = sqlite:///$K/keystone.sqlite
[identity]
password_hash_rounds = 4
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

manage() { "$VENV/bin/keystone-manage" --config-file "$K/keystone.conf" "$@" >>"$LAB_DIR/log/keystone-manage.log" 2>&1; }

fill() { # its tables, keys and first administrator, once
  [ ! -e "$K/filled" ] || return 0
  manage db_sync
  manage fernet_setup --keystone-user "$(id -un)" --keystone-group "$(id -gn)"
  manage credential_setup --keystone-user "$(id -un)" --keystone-group "$(id -gn)"
  manage bootstrap --bootstrap-password "$LEDGER_LAB_KEYSTONE_PASSWORD" --bootstrap-region-id RegionOne \
    --bootstrap-public-url "$LEDGER_LAB_KEYSTONE" --bootstrap-internal-url "$LEDGER_LAB_KEYSTONE" \
    --bootstrap-admin-url "$LEDGER_LAB_KEYSTONE"
  touch "$K/filled"
}

case ${1:-} in
  fill)
    venv "$VENV" "$LAB_SRC/requirements-keystone.txt"
    configure; fill ;;
  up)
    OS_KEYSTONE_CONFIG_FILES="$K/keystone.conf" spawn keystone \
      "$VENV/bin/python" "$LAB_SRC/wsgi_server.py" \
      keystone.server.wsgi:initialize_public_application "$LAB_ADDRESS" "$LAB_KEYSTONE_PORT"
    wait_port keystone "$LAB_KEYSTONE_PORT"
    "$VENV/bin/python" "$LAB_SRC/keystone_cloud.py" ;;
  down) stop keystone ;;
  *) fail "usage: keystone.sh fill|up|down" ;;
esac
