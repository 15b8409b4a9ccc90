#!/bin/bash
# nova.sh fill|up|hypervisor|rabbitmqctl WORDS|down: a real Nova as separate processes (API, conductor, scheduler, a compute service for
# each host with the fake driver), Placement, and what they need: MariaDB, RabbitMQ, and a Neutron that has
# nothing (neutron.py).  `up` needs Keystone and Cinder; servers boot from volumes, without networks.
# `hypervisor` adds a compute service with libvirt, on a host with namespaces of its own (hosts.sh).
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
VENV=$LAB_DIR/venv-nova ETC=$LAB_DIR/etc/nova STATE=$LAB_DIR/nova
FAKES=("$LAB_HOST" compute-2)
DB=mysql+pymysql://root@127.0.0.1:$LAB_MARIADB_PORT SOCKET=$LAB_DIR/run/mariadb.sock
export PATH="$VENV/bin:$PATH:/usr/lib/rabbitmq/bin" PYTHONWARNINGS=ignore

user_section() { # section user: how a service logs in
  cat <<C
[$1]
auth_type = password
auth_url = $LEDGER_LAB_KEYSTONE
username = $2
password = lab-$2
project_name = service
user_domain_id = default
project_domain_id = default
C
}

token_section() { # user service-type: without the type no credential with access rules is let in
  user_section keystone_authtoken "$1"
  cat <<C
www_authenticate_uri = $LEDGER_LAB_KEYSTONE
service_token_roles = service
service_token_roles_required = true
service_type = $2
C
}

# The fake driver that keeps its nodes can be restarted; with the other one Nova misses its identity.
nova_conf() {
  cat <<C
[DEFAULT]
transport_url = rabbit://guest:guest@127.0.0.1:$LAB_RABBIT_PORT/
my_ip = 127.0.0.1
state_path = $STATE
compute_driver = fake.FakeDriverWithoutFakeNodes
resume_guests_state_on_host_boot = true
periodic_fuzzy_delay = 0
use_stderr = true
[database]
connection = $DB/nova_cell1
[api_database]
connection = $DB/nova_api
[oslo_concurrency]
lock_path = $STATE/lock
[oslo_messaging_notifications]
driver = messagingv2
transport_url = rabbit://guest:guest@127.0.0.1:$LAB_RABBIT_PORT/notifications
[notifications]
notification_format = versioned
bdms_in_notifications = true
[conductor]
workers = 1
[scheduler]
workers = 1
discover_hosts_in_cells_interval = 1
[quota]
instances = -1
cores = -1
ram = -1
[glance]
endpoint_override = $LAB_GLANCE_URL
[vnc]
enabled = false
C
  user_section service_user nova; echo "send_service_user_token = true"
  token_section nova compute
  user_section placement placement; echo "region_name = RegionOne"
  user_section neutron neutron; echo "region_name = RegionOne"
  user_section cinder nova; echo "os_region_name = RegionOne"
}

placement_conf() {
  printf '[DEFAULT]\nuse_stderr = true\n[placement_database]\nconnection = %s/placement\n' "$DB"
  token_section placement placement
}

compute_conf() { # host: no compute service reaches the databases
  printf '[DEFAULT]\nhost = %s\nstate_path = %s\n' "$1" "$STATE/$1"
  printf '[api_database]\nconnection =\n[database]\nconnection =\n'
}

# Shares are mounted where the agent looks for them: then it finds them mounted.  No guest here heeds
# the request to shut down, for which Nova would wait a minute.  The key is Cinder's.
libvirt_conf() {
  local section
  compute_conf "$LAB_HOST_2"
  cat <<C
[DEFAULT]
compute_driver = libvirt.LibvirtDriver
shutdown_timeout = 5
[libvirt]
virt_type = qemu
cpu_mode = none
nfs_mount_point_base = $LAB_DIR/mnt-agent-2
[key_manager]
backend = nova.keymgr.conf_key_mgr.ConfKeyManager
fixed_key = $LAB_FIXED_KEY
C
  for section in nova_sys_admin privsep_osbrick; do
    printf '[%s]\nhelper_command = %s/bin/privsep-helper --config-file %s/nova.conf --config-file %s/%s.conf\n' \
      "$section" "$VENV" "$ETC" "$ETC" "$LAB_HOST_2"
  done
}

hypervisor() {
  "$LAB_SRC/hosts.sh" account; "$LAB_SRC/hosts.sh" start 2
  mkdir -p "$STATE/$LAB_HOST_2/instances" "$LAB_DIR"/{locks,mnt-agent}-2
  libvirt_conf >"$ETC/$LAB_HOST_2.conf"
  # shellcheck disable=SC2046  # several words
  spawn "nova-$LAB_HOST_2" $(enter 2) nova-compute --config-file "$ETC/nova.conf" --config-file "$ETC/$LAB_HOST_2.conf"
  "$LAB_DIR/venv-client/bin/python" "$LAB_SRC/nova/ready.py" "$LAB_HOST_2"
}

mariadb() {
  local name dir=$LAB_DIR/mariadb
  [ -e "$dir" ] || mariadb-install-db --no-defaults --user=root --datadir="$dir" --skip-test-db \
    --skip-name-resolve --auth-root-authentication-method=normal >"$LAB_DIR/log/mariadb-install.log" 2>&1
  spawn mariadb mariadbd --no-defaults --user=root --datadir="$dir" --bind-address=127.0.0.1 \
    --port="$LAB_MARIADB_PORT" --socket="$SOCKET" --pid-file="$LAB_DIR/run/mariadb.own.pid" \
    --skip-name-resolve --max-connections=600 --character-set-server=utf8mb3
  wait_port mariadb "$LAB_MARIADB_PORT"
  for name in nova_api nova_cell0 nova_cell1 placement; do echo "create database if not exists $name;"; done |
    command mariadb --no-defaults --socket="$SOCKET" -uroot
}

rabbit() {
  export HOME=$LAB_DIR/rabbit ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT=$LAB_EPMD_PORT
  mkdir -p "$HOME"
  spawn epmd epmd -port "$LAB_EPMD_PORT" -address 127.0.0.1
  RABBITMQ_NODENAME=nova@localhost RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 RABBITMQ_NODE_PORT=$LAB_RABBIT_PORT \
    RABBITMQ_DIST_PORT=$((LAB_RABBIT_PORT + 1)) RABBITMQ_MNESIA_BASE=$HOME/mnesia RABBITMQ_LOG_BASE=$HOME \
    RABBITMQ_PID_FILE=$HOME/pid RABBITMQ_ENABLED_PLUGINS_FILE=$HOME/plugins RABBITMQ_CONF_ENV_FILE=/nonexistent \
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}' \
    spawn rabbitmq /usr/lib/rabbitmq/bin/rabbitmq-server
}

tables() { # once: they take half a minute
  local manage=("$VENV/bin/nova-manage" --config-file "$ETC/nova.conf")
  [ ! -e "$STATE/.synced" ] || return 0
  placement-manage --config-file "$ETC/placement.conf" db sync
  "${manage[@]}" api_db sync
  "${manage[@]}" cell_v2 map_cell0 --database_connection "$DB/nova_cell0"
  "${manage[@]}" db sync
  "${manage[@]}" cell_v2 create_cell --name cell1
  touch "$STATE/.synced"
}

serve() { # name port module processes
  spawn "$1" uwsgi --http-socket "127.0.0.1:$2" --module "$3" --processes "$4" --threads 4 --master --lazy-apps \
    --enable-threads --need-app --die-on-term --buffer-size 65535 --disable-logging --add-header "Connection: close"
}

up() {
  local host each
  for each in nova-api:"$LAB_NOVA_PORT":NOVA placement:"$LAB_PLACEMENT_PORT":PLACEMENT neutron:"$LAB_NEUTRON_PORT":NEUTRON \
    mariadb:"$LAB_MARIADB_PORT":MARIADB rabbitmq:"$LAB_RABBIT_PORT":RABBIT epmd:"$LAB_EPMD_PORT":EPMD; do
    IFS=: read -r name port setting <<<"$each"; port_free "$name" "$port" "LAB_${setting}_PORT"
  done
  mkdir -p "$ETC" "$STATE/lock"
  ln -sfn "$VENV/etc/nova/api-paste.ini" "$ETC/api-paste.ini"
  nova_conf >"$ETC/nova.conf"; placement_conf >"$ETC/placement.conf"
  (rabbit); mariadb
  spawn neutron "$LAB_VENV/bin/python" "$LAB_SRC/nova/neutron.py" "$LAB_NEUTRON_PORT"
  # shellcheck disable=SC2086  # several words
  "$LAB_DIR/venv-keystone/bin/python" "$LAB_SRC/keystone_cloud.py" $LAB_SERVICES
  tables >"$LAB_DIR/log/nova-db.log" 2>&1 || { tail -n 20 "$LAB_DIR/log/nova-db.log" >&2; return 1; }
  wait_port rabbitmq "$LAB_RABBIT_PORT"; bus
  OS_PLACEMENT_CONFIG_DIR=$ETC serve placement "$LAB_PLACEMENT_PORT" placement.wsgi.api:application 1
  OS_NOVA_CONFIG_DIR=$ETC serve nova-api "$LAB_NOVA_PORT" nova.wsgi.osapi_compute:application 2
  for each in conductor scheduler; do spawn nova-$each nova-$each --config-file "$ETC/nova.conf"; done
  for host in "${FAKES[@]}"; do
    mkdir -p "$STATE/$host/instances"; compute_conf "$host" >"$ETC/$host.conf"
    spawn "nova-$host" nova-compute --config-file "$ETC/nova.conf" --config-file "$ETC/$host.conf"
  done
  for each in placement:"$LAB_PLACEMENT_PORT" nova-api:"$LAB_NOVA_PORT"; do wait_port "${each%:*}" "${each#*:}"; done
  "$LAB_DIR/venv-client/bin/python" "$LAB_SRC/nova/ready.py" "${FAKES[@]}"
}

rabbitmqctl() { # words: of the node that Nova uses
  HOME=$LAB_DIR/rabbit ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT=$LAB_EPMD_PORT \
    /usr/lib/rabbitmq/bin/rabbitmqctl -n nova@localhost -q "$@"
}

bus() { # the virtual host of Nova's notifications; what the ledger's user may there, docs/observe.md says
  rabbitmqctl await_startup
  [ ! -e "$LAB_DIR/rabbit/.bus" ] || return 0
  rabbitmqctl add_vhost notifications
  rabbitmqctl set_permissions -p notifications guest '.*' '.*' '.*'
  rabbitmqctl add_user ledger lab
  touch "$LAB_DIR/rabbit/.bus"
}

down() {
  local name
  for name in nova-api "${FAKES[@]/#/nova-}" "nova-$LAB_HOST_2" nova-scheduler nova-conductor placement neutron rabbitmq epmd mariadb; do
    stop "$name"
  done
}

case ${1:-} in
  fill)
    packages mariadb-server-core mariadb-client-core rabbitmq-server
    venv "$VENV" "$LAB_SRC/requirements-nova.txt" ;;
  up | hypervisor | rabbitmqctl | down) "$@" ;;
  *) fail "usage: nova.sh fill|up|hypervisor|rabbitmqctl|down" ;;
esac
