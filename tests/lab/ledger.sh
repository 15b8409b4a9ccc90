#!/bin/bash
# ledger.sh up|down|start NAME|agent_toml ...: our own service ("ledger") with a PostgreSQL of its own
# ("postgres"), and each host's agent ("agent-1", "agent-2"), as an operator would run them.
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
DSN_FILE=$LAB_DIR/run/postgres.dsn

cinder_auth() { # where Cinder is, the catalog says
  cat <<C
[cinder.auth]
auth_type = "password"
auth_url = "$LEDGER_LAB_KEYSTONE"
username = "ledger"
password = "lab-ledger"
project_name = "service"
user_domain_id = "default"
project_domain_id = "default"
C
}

ledger_toml() {
  cat <<C
database_url = "$(cat "$DSN_FILE")"
auth = "keystone"
swap_by_users = true

[listen]
host = "$LAB_ADDRESS"
port = $LAB_LEDGER_PORT
plain_http = true

$(cinder_auth)

# For the day on which Keystone is away.
[[tokens]]
name = "operator"
token = "$LAB_OPERATOR_TOKEN"
user_id = "operator"
project_id = "operators"
roles = ["admin", "operator"]

[[tokens]]
name = "agent-1"
token = "$LAB_AGENT_TOKEN"
user_id = "agent-1"
project_id = "service"
roles = ["agent"]
host = "$LAB_HOST"

[[tokens]]
name = "agent-2"
token = "$LAB_AGENT_TOKEN_2"
user_id = "agent-2"
project_id = "service"
roles = ["agent"]
host = "$LAB_HOST_2"
C
}

agent_toml() { # number host address token: patience is short, as some guests here never let go
  cat <<C
[agent]
host = "$2"
lock_path = "$LAB_DIR/locks-$1"
log_level = "debug"

[ledger]
url = "$LAB_LEDGER_URL"
plain_http = true
token = "$4"

[libvirt]
uri = "qemu:///system"
virt_type = "qemu"
detach_attempts = $LAB_DETACH_ATTEMPTS
detach_timeout_s = 6.0
shutdown_timeout_s = 5.0
migration_uri = "qemu+tcp://$3/system"
migration_address = "$3"
kernel_dir = "$LAB_DIR/guest"

[brick]
my_ip = "$3"
mount_point_base = "$LAB_DIR/mnt-agent-$1"

$(cinder_auth)

[keys]
fixed_key = "$LAB_FIXED_KEY"
C
}

start() { # name
  local bin=$LAB_VENV/bin
  case $1 in
    postgres)
      spawn postgres "$bin/python" "$LAB_SRC/postgres.py" "$LAB_DIR/postgres" "$DSN_FILE"
      wait_for 60 PostgreSQL test -s "$DSN_FILE" ;;
    ledger)
      spawn ledger "$bin/attachment-ledger" serve --config "$LAB_DIR/etc/ledger.toml"
      wait_port ledger "$LAB_LEDGER_PORT" ;;
    agent-[12])
      # shellcheck disable=SC2046  # several words, or none
      spawn "$1" $(enter "${1#agent-}") \
        "$bin/attachment-ledger-agent" run --config "$LAB_DIR/etc/$1.toml"
      wait_daemon "$1" is_the_agent "$1" ;;
    *) fail "postgres, ledger, agent-1 or agent-2, not '$1'" ;;
  esac
}

is_the_agent() { # name: it has the lock that only one agent of a host has
  [ "$(cat "$LAB_DIR/locks-${1#agent-}/agent.lock" 2>/dev/null)" = "$(running "$1")" ]
}

up() {
  mkdir -p "$LAB_DIR"/{locks,mnt-agent}-{1,2}
  running postgres >/dev/null || rm -f "$DSN_FILE"
  start postgres
  (
    umask 077; cd "$LAB_DIR/etc"
    ledger_toml >ledger.toml
    agent_toml 1 "$LAB_HOST" "$LAB_ADDRESS" "$LAB_AGENT_TOKEN" >agent-1.toml
    agent_toml 2 "$LAB_HOST_2" "$LAB_ADDRESS_2" "$LAB_AGENT_TOKEN_2" >agent-2.toml
  )
  "$LAB_VENV/bin/attachment-ledger" db upgrade --config "$LAB_DIR/etc/ledger.toml" \
    >"$LAB_DIR/log/db.log" 2>&1 || { cat "$LAB_DIR/log/db.log" >&2; return 1; }
  start ledger
  start agent-1
  start agent-2
}

down() { local name; for name in agent-1 agent-2 ledger postgres; do stop $name; done; }

"${1:?up, down, start or agent_toml}" "${@:2}"
