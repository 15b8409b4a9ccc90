#!/bin/bash
# cinder.sh up|down: real Cinder 29 in one process (cinder.conf), without Keystone.  It is here, where nothing
# is emulated, and has hands in the first VM (hands.py).  Again is harmless; after a boot of it Cinder starts anew.
FAB_VM=1; . "$(dirname "$0")/env.sh"
VENV=$LAB_DIR/venv-cinder STATE=$LAB_DIR/cinder
export PATH="$VENV/bin:$PATH" PYTHONWARNINGS=ignore PYTHONPATH="$FAB_SRC/cinder"

configure() {
  mkdir -p "$STATE"/{lock,coordination,volumes}
  { sed 's#\(^noauth.* noauth[a-z_]*\) #\1 fabservice #' "$VENV/etc/cinder/api-paste.ini"
    printf '\n[filter:fabservice]\npaste.filter_factory = fab_service:factory\n'; } >"$STATE/api-paste.ini"
  sed "s#@STATE@#$STATE#; s#@VENV@#$VENV#; s#@PORT@#$LAB_CINDER_PORT#; s#@LEDGER@#$LEDGER_URL#
    s#@TOKEN@#$LAB_OPERATOR_TOKEN#; s#@KEY@#$LAB_FIXED_KEY#" "$FAB_SRC/cinder/cinder.conf" >"$STATE/cinder.conf"
  [ -e "$STATE/synced" ] || cinder-manage --config-file "$STATE/cinder.conf" db sync >"$LAB_DIR/log/cinder-db.log" 2>&1
  touch "$STATE/synced"
}

hands() { vm 'ss -Hltn "sport = :8777" | grep -q .'; }

ready() {
  listens cinder "$LAB_CINDER_PORT" &&
    [ "$(grep -c 'Driver initialization completed successfully' "$LAB_DIR/log/cinder.log")" -ge 2 ]
}

up() {
  port_free cinder "$LAB_CINDER_PORT" LAB_CINDER_PORT
  if ! hands; then
    stop cinder
    vm 'cat >/opt/rtstool.py' <"$(echo "$VENV"/lib/python3*/site-packages/cinder/cmd/rtstool.py)"
    vm 'cat >/opt/hands.py; setsid python3 /opt/hands.py >/var/log/hands.log 2>&1 </dev/null &' <"$FAB_SRC/hands.py"
    wait_for 120 "Cinder's hands in the VM" hands || { vm 'cat /var/log/hands.log' >&2; return 1; }
  fi
  ! running cinder >/dev/null || return 0
  configure; rm -f "$LAB_DIR/log/cinder.log"
  spawn cinder "$VENV/bin/python" "$LAB_SRC/cinder_process.py" --config-file "$STATE/cinder.conf"
  wait_daemon cinder ready
}

down() { stop cinder; }

"${1:?up or down}"
