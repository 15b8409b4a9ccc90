#!/bin/bash
# cinder.sh up|down [BACKENDS]: real Cinder in one process (SQLite, bus in memory) with the
# backends named ("nfs,rbd"; as before), and the gate that all others reach it through.  It
# asks Keystone who its callers are, and finds the compute endpoint in the catalog.
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
VENV=$LAB_DIR/venv-cinder STATE=$LAB_DIR/cinder CONF=$LAB_DIR/etc/cinder.conf
BACKENDS=${2:-$(sed -n 's/^enabled_backends = //p' "$CONF" 2>/dev/null || true)}
export PATH="$VENV/bin:$PATH" PYTHONWARNINGS=ignore

common_section() {
  cat <<C
[DEFAULT]
state_path = $STATE
host = lab
my_ip = 127.0.0.1
storage_availability_zone = nova
osapi_volume_listen = 127.0.0.1
osapi_volume_listen_port = $LAB_CINDER_PORT
osapi_volume_workers = 1
api_paste_config = $VENV/etc/cinder/api-paste.ini
resource_query_filters_file = $VENV/etc/cinder/resource_filters.json
rootwrap_config = $LAB_DIR/etc/rootwrap.conf
# Within one process only: "kombu+memory" serialises, "fake" passes objects by reference.
transport_url = kombu+memory://
auth_strategy = keystone
enabled_backends = $BACKENDS
default_volume_type = ${BACKENDS%%,*}
report_interval = 5
# What comes before the volume service is there is lost, and failed after this long.
rpc_response_timeout = 15
# Services of one process share the record of their heart-beat: only one beats.
service_down_time = 315360000
volume_clear = none
quota_volumes = -1
quota_gigabytes = -1
per_volume_size_limit = -1
glance_api_servers = $LAB_GLANCE_URL
image_conversion_dir = $STATE/conversion

[database]
connection = sqlite:///$STATE/cinder.sqlite

[oslo_concurrency]
lock_path = $STATE/lock

[coordination]
backend_url = file://$STATE/coordination

[key_manager]
backend = cinder.keymgr.conf_key_mgr.ConfKeyManager
fixed_key = $LAB_FIXED_KEY

[privsep_osbrick]
helper_command = $VENV/bin/privsep-helper --config-file $CONF

[cinder_sys_admin]
helper_command = $VENV/bin/privsep-helper --config-file $CONF

[keystone_authtoken]
auth_type = password
auth_url = $LEDGER_LAB_KEYSTONE
username = cinder
password = lab-cinder
project_name = service
user_domain_id = default
project_domain_id = default
www_authenticate_uri = $LEDGER_LAB_KEYSTONE
service_token_roles = service
service_token_roles_required = true
# Without it no credential with access rules is let in.
service_type = volumev3

[service_user]
auth_section = keystone_authtoken
send_service_user_token = true

# Cinder takes its own user for its swaps and events only if the type is here as well.
[nova]
auth_section = keystone_authtoken
auth_type = password
C
}

# A raw file on a share can be written by two guests; the driver just does not say so.
nfs_section() { # name, also of the share's directory
  cat <<C

[$1]
volume_driver = cinder.volume.drivers.nfs.NfsDriver
volume_backend_name = $1
extra_capabilities = {"multiattach": true, "keeps_data": true}
nas_host = 127.0.0.1
nas_share_path = $LAB_DIR/export/$1
nfs_mount_point_base = $LAB_DIR/mnt-cinder
nas_secure_file_operations = false
nas_secure_file_permissions = false
nfs_snapshot_support = true
C
}

rbd_section() {
  cat <<C

[rbd]
volume_driver = cinder.volume.drivers.rbd.RBDDriver
volume_backend_name = rbd
extra_capabilities = {"keeps_data": true}
rbd_pool = volumes
rbd_user = cinder
rbd_ceph_conf = $CEPH_CONF
rbd_secret_uuid = $(cat "$LAB_DIR/ceph/secret_uuid")
rados_connect_timeout = 5
C
}

nfs2_section() { nfs_section "$1"; }

# In-tree, control plane only: quick, and hands out connections that no host can use.
fake_section() {
  cat <<C

[fake]
volume_driver = cinder.tests.fake_driver.FakeLoggingVolumeDriver
volume_backend_name = fake
extra_capabilities = {"multiattach": true}
C
}

configure() {
  local backend etc=$VENV/etc
  mkdir -p "$STATE"/{lock,coordination,conversion,volumes} "$LAB_DIR/mnt-cinder"
  for backend in nfs nfs2; do
    [[ ,$BACKENDS, = *,$backend,* ]] || continue
    mkdir -p "$LAB_DIR/export/$backend"; chmod 777 "$LAB_DIR/export/$backend"
    touch "$LAB_DIR/export/$backend/.lab-nfs-export"
  done
  if [[ ,$BACKENDS, = *,nfs,* ]]; then
    [ -e /sbin/mount.nfs ] || install -m755 "$LAB_SRC/mount.nfs" /sbin/mount.nfs
  fi
  { common_section; for backend in ${BACKENDS//,/ }; do "${backend}_section" "$backend"; done; } >"$CONF.new"
  sed "s#^filters_path=.*#filters_path=$etc/cinder/rootwrap.d,$etc/os-brick/rootwrap.d#
    s#^exec_dirs=.*#&,$VENV/bin#" "$etc/cinder/rootwrap.conf" >"$LAB_DIR/etc/rootwrap.conf"
}

ceph_bindings() { # Debian's are built for its Python; take these two modules, nothing else
  local module file
  for module in rados rbd; do
    for file in /usr/lib/python3/dist-packages/$module.cpython-*.so; do
      ln -sfn "$file" "$VENV"/lib/python3*/site-packages/
    done
  done
}

up() {
  configure
  case ,$BACKENDS, in *,rbd,*) ceph_bindings ;; esac
  # Another set of backends needs another process.
  if ! cmp -s "$CONF.new" "$CONF"; then stop cinder; mv "$CONF.new" "$CONF"; fi
  if [ ! -e "$STATE/.synced" ]; then
    cinder-manage --config-file "$CONF" db sync >"$LAB_DIR/log/cinder-db.log" 2>&1
    touch "$STATE/.synced"
  fi
  spawn gate "$LAB_VENV/bin/python" "$LAB_SRC/gate.py"
  spawn cinder "$VENV/bin/python" "$LAB_SRC/cinder_process.py" --config-file "$CONF"
  wait_port gate "$LAB_GATE_PORT"
  wait_port cinder "$LAB_CINDER_PORT"
  (cd "$LAB_ROOT" && "$LAB_VENV/bin/python" -m tests.lab.cinder_ready "${BACKENDS//,/ }")
}

down() {
  local name; for name in cinder gate; do stop $name; done
  # Whichever lab put it there, the last one takes it away.
  [ -n "$(other_labs)" ] || ! grep -qs "the lab of attachment-ledger" /sbin/mount.nfs ||
    rm -f /sbin/mount.nfs
}

"${1:?up or down}"
