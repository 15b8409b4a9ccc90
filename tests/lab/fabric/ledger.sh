#!/bin/bash
# ledger.sh up|off|down|agent|agent_off: our service here, with a PostgreSQL of its own, and its agent in the VM FAB_VM.
. "$(dirname "$0")/env.sh"
DSN_FILE=$LAB_DIR/run/postgres.dsn

cinder_section() { # url
  printf '[cinder]\nendpoint = "%s/v3"\nuser_id = "ledger"\nproject_id = "%s"\n' "$1" "$FAB_PROJECT_ID"
}

ledger_toml() {
  cat <<C
database_url = "$(cat "$DSN_FILE")"
auth = "tokens"
swap_by_users = true
[listen]
host = "127.0.0.1"
port = $LAB_LEDGER_PORT
[[tokens]]
name = "operator"
token = "$LAB_OPERATOR_TOKEN"
user_id = "operator"
project_id = "$FAB_PROJECT_ID"
roles = ["admin", "operator"]
[[tokens]]
name = "agent-1"
token = "$LAB_AGENT_TOKEN"
user_id = "agent-1"
project_id = "service"
roles = ["agent"]
host = "fabric-1"
[[tokens]]
name = "agent-2"
token = "$LAB_AGENT_TOKEN_2"
user_id = "agent-2"
project_id = "service"
roles = ["agent"]
host = "fabric-2"
C
  cinder_section "http://127.0.0.1:$LAB_CINDER_PORT"
}

agent_toml() { # token
  cat <<C
[agent]
host = "$FAB_HOST"
lock_path = "/var/lib/agent/locks"
log_level = "info"
[ledger]
url = "http://127.0.0.1:$LAB_LEDGER_PORT"
token = "$1"
[libvirt]
uri = "qemu:///system"
virt_type = "qemu"
detach_attempts = 2
detach_timeout_s = 20.0
shutdown_timeout_s = 5.0
migration_uri = "qemu+tcp://10.90.1.$FAB_VM/system"
migration_address = "10.90.1.$FAB_VM"
[brick]
my_ip = "10.90.1.$FAB_VM"
use_multipath = true
mount_point_base = "/var/lib/agent/mnt"
[keys]
fixed_key = "$LAB_FIXED_KEY"
C
  cinder_section http://127.0.0.1:8776
}

agent() { # words for its command line: in the VM, by which it may be told to die (dying_agent.py)
  local token=$LAB_AGENT_TOKEN
  ! vm 'rm -f /run/die; pgrep -F /var/lib/agent/locks/agent.lock' >/dev/null 2>&1 || return 0
  [ "$FAB_VM" = 1 ] || token=$LAB_AGENT_TOKEN_2
  agent_toml "$token" | vm 'umask 077; mkdir -p /etc/attachment-ledger /var/lib/agent; cat >/etc/attachment-ledger/agent.toml'
  vm "setsid /opt/agent/bin/python /opt/project/tests/lab/fabric/dying_agent.py run --config /etc/attachment-ledger/agent.toml $* >>/var/log/agent.log 2>&1 </dev/null &"
  wait_for 600 "the agent" vm 'pgrep -F /var/lib/agent/locks/agent.lock'
}

agent_off() { # [signal]
  vm "p=\$(cat /var/lib/agent/locks/agent.lock) && kill -${1:-TERM} \$p && while kill -0 \$p 2>/dev/null; do sleep 0.1; done" || true
}

up() {
  port_free ledger "$LAB_LEDGER_PORT" LAB_LEDGER_PORT
  running postgres >/dev/null || rm -f "$DSN_FILE"
  spawn postgres "$LAB_VENV/bin/python" "$LAB_SRC/postgres.py" "$LAB_DIR/postgres" "$DSN_FILE"
  wait_for 60 PostgreSQL test -s "$DSN_FILE"
  (umask 077; ledger_toml >"$LAB_DIR/etc/ledger.toml")
  "$LAB_VENV/bin/attachment-ledger" db upgrade --config "$LAB_DIR/etc/ledger.toml" >"$LAB_DIR/log/db.log" 2>&1 ||
    { cat "$LAB_DIR/log/db.log" >&2; return 1; }
  spawn ledger "$LAB_VENV/bin/attachment-ledger" serve --config "$LAB_DIR/etc/ledger.toml"
  wait_port ledger "$LAB_LEDGER_PORT"
}

off() { stop ledger; }
down() { off; stop postgres; }

"${1:?up, off, down, agent or agent_off}" "${@:2}"
