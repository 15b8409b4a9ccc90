#!/bin/bash
# ledger.sh up|down|start NAME: our own service ("ledger") with a PostgreSQL of its own
# ("postgres"), and the agent of this host ("agent"), as an operator would run them.
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
DSN_FILE=$LAB_DIR/run/postgres.dsn

ledger_toml() {
  cat <<C
database_url = "$(cat "$DSN_FILE")"
auth = "tokens"

[listen]
port = $LAB_LEDGER_PORT

[cinder]
endpoint = "$LAB_GATE_URL/v3"

# The user, and Cinder on the user's behalf.
[[tokens]]
name = "lab"
token = "$LAB_TOKEN"
user_id = "$LAB_USER"
project_id = "$LAB_PROJECT"
roles = ["member", "reader"]

[[tokens]]
name = "operator"
token = "$LAB_OPERATOR_TOKEN"
user_id = "operator"
project_id = "operators"
roles = ["admin", "operator"]

[[tokens]]
name = "agent"
token = "$LAB_AGENT_TOKEN"
user_id = "agent"
project_id = "service"
roles = ["agent"]
host = "$LAB_HOST"
C
}

agent_toml() { # patience is short: some guests here never let go
  cat <<C
[agent]
host = "$LAB_HOST"
lock_path = "$LAB_DIR/locks"
log_level = "debug"

[ledger]
url = "$LAB_LEDGER_URL"
token = "$LAB_AGENT_TOKEN"

[libvirt]
uri = "$LAB_LIBVIRT_URI"
detach_attempts = 2
detach_timeout_s = 6.0

[brick]
my_ip = "127.0.0.1"
mount_point_base = "$LAB_DIR/mnt-agent"

[cinder]
endpoint = "$LAB_GATE_URL/v3"
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
    agent)
      spawn agent "$bin/attachment-ledger-agent" run --config "$LAB_DIR/etc/agent.toml" ;;
    *) fail "postgres, ledger or agent, not '$1'" ;;
  esac
}

up() {
  mkdir -p "$LAB_DIR"/{locks,mnt-agent}
  running postgres >/dev/null || rm -f "$DSN_FILE"
  start postgres
  (umask 077; ledger_toml >"$LAB_DIR/etc/ledger.toml"; agent_toml >"$LAB_DIR/etc/agent.toml")
  "$LAB_VENV/bin/attachment-ledger" db upgrade --config "$LAB_DIR/etc/ledger.toml" \
    >"$LAB_DIR/log/db.log" 2>&1 || { cat "$LAB_DIR/log/db.log" >&2; return 1; }
  start ledger
  start agent
}

down() { local name; for name in agent ledger postgres; do stop $name; done; }

"${1:?up, down or start}" ${2:+"$2"}
