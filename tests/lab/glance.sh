#!/bin/bash
# glance.sh fill|up|down: a real Glance (SQLite, images in files) in an environment of its own, for
# conformance.sh, test_reimage.py and nova/test_tempest.py: no other test needs images.  `up` needs Keystone.
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
VENV=$LAB_DIR/venv-glance G=$LAB_DIR/glance

configure() {
  mkdir -p "$G"/{images,staging,tasks}
  cp "$VENV/etc/glance/glance-api-paste.ini" "$G/"
  cat >"$G/glance-api.conf" <<CONF
[DEFAULT]
enabled_backends = files:file
use_stderr = true
enabled_import_methods = []
worker_self_reference_url = $LAB_GLANCE_URL
[database]
connection = sqlite:///$G/glance.sqlite
[glance_store]
default_backend = files
[files]
filesystem_store_datadir = $G/images
[os_glance_staging_store]
filesystem_store_datadir = $G/staging
[os_glance_tasks_store]
filesystem_store_datadir = $G/tasks
[paste_deploy]
flavor = keystone
config_file = $G/glance-api-paste.ini
[keystone_authtoken]
auth_type = password
auth_url = $LEDGER_LAB_KEYSTONE
username = glance
password = lab-glance
project_name = service
user_domain_id = default
project_domain_id = default
www_authenticate_uri = $LEDGER_LAB_KEYSTONE
CONF
}

case ${1:-} in
  fill)
    venv "$VENV" "$LAB_SRC/requirements-glance.txt"
    configure
    [ -e "$G/filled" ] || "$VENV/bin/glance-manage" --config-file "$G/glance-api.conf" db_sync \
      >"$LAB_DIR/log/glance-manage.log" 2>&1
    touch "$G/filled" ;;
  up)
    port_free glance "$LAB_GLANCE_PORT" LAB_GLANCE_PORT
    OS_GLANCE_CONFIG_DIR=$G spawn glance "$VENV/bin/python" "$LAB_SRC/wsgi_server.py" \
      glance.common.wsgi_app:init_app "$LAB_ADDRESS" "$LAB_GLANCE_PORT"
    wait_port glance "$LAB_GLANCE_PORT"
    # shellcheck disable=SC2086  # several words, or none
    "$LAB_DIR/venv-keystone/bin/python" "$LAB_SRC/keystone_cloud.py" $LAB_SERVICES image ;;
  down)
    ran=$(running glance || true)
    stop glance
    if [ -n "$ran" ] && running keystone >/dev/null; then # clients ask all that the catalog names
      # shellcheck disable=SC2086  # several words, or none
      "$LAB_DIR/venv-keystone/bin/python" "$LAB_SRC/keystone_cloud.py" $LAB_SERVICES
    fi ;;
  *) fail "usage: glance.sh fill|up|down" ;;
esac
