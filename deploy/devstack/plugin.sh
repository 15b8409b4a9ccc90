#!/bin/bash
# The DevStack plugin: enable_plugin attachment-ledger URL, in local.conf.
#
# `ledger` is the service with a PostgreSQL of its own, `ledger-agent` the agent beside nova-compute.
# stack.sh calls this file in its phases: install; post-config; extra; then unstack and clean.
# shellcheck disable=SC2154  # DevStack's variables

LEDGER_DIR=$(dirname "$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")")

# One token for each host, made of the secret and its name: no file has to be carried about.
function ledger_agent_token {
    printf '%s%s' "$LEDGER_AGENT_SECRET" "$1" | sha256sum | cut -d' ' -f1
}

function install_ledger {
    local extra=service
    if is_service_enabled ledger; then
        install_package postgresql
    fi
    if is_service_enabled ledger-agent; then
        extra=service,agent
        install_package libvirt-dev pkg-config gcc python3-dev
    fi
    # Not DevStack's environment: our packages have common names (docs/install.md).
    python3 -m venv "$LEDGER_VENV"
    "$LEDGER_VENV/bin/pip" install --editable "${LEDGER_DIR}[$extra]"
}

function configure_ledger {
    sudo install -d -o "$STACK_USER" "$LEDGER_CONF_DIR" "$LEDGER_DATA_DIR"
    if is_service_enabled ledger; then
        write_ledger_settings >"$LEDGER_CONF_DIR/ledger.toml"
        chmod 600 "$LEDGER_CONF_DIR/ledger.toml"
    fi
    if is_service_enabled ledger-agent; then
        write_ledger_agent_settings >"$LEDGER_CONF_DIR/agent.toml"
        chmod 600 "$LEDGER_CONF_DIR/agent.toml"
    fi
}

function write_ledger_settings {
    cat <<EOF
database_url = "postgresql:///ledger"
auth = "keystone"

[listen]
host = "$SERVICE_HOST"
port = $LEDGER_PORT
plain_http = true

EOF
    write_ledger_cinder
    local host
    for host in ${LEDGER_HOSTS:-$(hostname)}; do
        cat <<EOF

[[tokens]]
name = "$host"
user_id = "agent-$host"
project_id = "service"
roles = ["agent"]
host = "$host"
token = "$(ledger_agent_token "$host")"
EOF
    done
}

function write_ledger_agent_settings {
    cat <<EOF
[agent]
host = "$(hostname)"
lock_path = "$LEDGER_DATA_DIR/locks"

[ledger]
url = "http://$SERVICE_HOST:$LEDGER_PORT"
token = "$(ledger_agent_token "$(hostname)")"
plain_http = true

[libvirt]
virt_type = "$LIBVIRT_TYPE"

EOF
    write_ledger_cinder
}

# The same user for both, as cinder itself has one.
function write_ledger_cinder {
    cat <<EOF
[cinder]
region_name = "$REGION_NAME"

[cinder.auth]
auth_type = "password"
auth_url = "$KEYSTONE_SERVICE_URI"
username = "attachment-ledger"
password = "$SERVICE_PASSWORD"
project_name = "$SERVICE_PROJECT_NAME"
user_domain_name = "$SERVICE_DOMAIN_NAME"
project_domain_name = "$SERVICE_DOMAIN_NAME"
EOF
}

function create_ledger_accounts {
    create_service_user attachment-ledger admin
    get_or_create_service attachment-ledger attachment-ledger "Ledger of volume attachments"
    get_or_create_endpoint attachment-ledger "$REGION_NAME" "http://$SERVICE_HOST:$LEDGER_PORT"
}

function init_ledger {
    sudo -u postgres createuser --no-superuser "$STACK_USER" 2>/dev/null || true # it may be there
    sudo -u postgres dropdb --if-exists ledger
    sudo -u postgres createdb --owner "$STACK_USER" --encoding UTF8 --lc-collate C --template template0 ledger
    "$LEDGER_VENV/bin/attachment-ledger" db upgrade --config "$LEDGER_CONF_DIR/ledger.toml"
}

function start_ledger {
    if is_service_enabled ledger; then
        run_process ledger "$LEDGER_VENV/bin/attachment-ledger serve --config $LEDGER_CONF_DIR/ledger.toml"
        if ! wait_for_service "$SERVICE_TIMEOUT" "http://$SERVICE_HOST:$LEDGER_PORT/readyz"; then
            die $LINENO "the ledger does not answer: journalctl -u devstack@ledger"
        fi
    fi
    if is_service_enabled ledger-agent; then # root: os-brick's work is
        run_process ledger-agent "$LEDGER_VENV/bin/attachment-ledger-agent run --config $LEDGER_CONF_DIR/agent.toml" root root
    fi
}

function stop_ledger {
    stop_process ledger-agent
    stop_process ledger
}

function cleanup_ledger {
    sudo rm -rf "$LEDGER_CONF_DIR" "$LEDGER_DATA_DIR" "$LEDGER_VENV"
}

if is_service_enabled ledger ledger-agent; then
    case "$1 ${2:-}" in
    "stack install") install_ledger ;;
    "stack post-config")
        configure_ledger
        if is_service_enabled ledger; then create_ledger_accounts; fi
        ;;
    "stack extra")
        if is_service_enabled ledger; then init_ledger; fi
        start_ledger
        ;;
    "unstack "*) stop_ledger ;;
    "clean "*) cleanup_ledger ;;
    esac
fi
