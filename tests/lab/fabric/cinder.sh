#!/bin/bash
# cinder.sh: in the VM, real Cinder 29 in one process (root/etc/cinder/cinder.conf), without Keystone.
# Again is harmless.
. "$(dirname "$0")/env.sh"
vm 'cat >/etc/cinder/outside.conf' <<C
# What of its settings only the outside knows: who its compute service is, and its users' keys.
[nova]
auth_type = admin_token
endpoint = http://127.0.0.1:$LAB_LEDGER_PORT/v2.1
token = $LAB_OPERATOR_TOKEN
[key_manager]
backend = cinder.keymgr.conf_key_mgr.ConfKeyManager
fixed_key = $LAB_FIXED_KEY
C
vm 'set -e; export PATH=/opt/cinder/bin:$PATH PYTHONWARNINGS=ignore
! ss -Hltn "sport = :8776" | grep -q . || exit 0
mkdir -p /var/cinder/lock /var/cinder/coordination /var/cinder/volumes
sed "s#\(^noauth.* noauth[a-z_]*\) #\1 fabservice #" /opt/cinder/etc/cinder/api-paste.ini >/etc/cinder/api-paste.ini
printf "\n[filter:fabservice]\npaste.filter_factory = fab_service:factory\n" >>/etc/cinder/api-paste.ini
if [ ! -e /var/cinder/synced ]; then
  cinder-manage --config-file /etc/cinder/cinder.conf db sync >/var/log/cinder-db.log 2>&1; touch /var/cinder/synced
fi
setsid python3 /opt/project/tests/lab/cinder_process.py --config-file /etc/cinder/cinder.conf --config-file /etc/cinder/outside.conf >/var/log/cinder.log 2>&1 </dev/null &'
ready() {
  vm 'ss -Hltn "sport = :8776" | grep -q . &&
    [ "$(grep -c "Driver initialization completed successfully" /var/log/cinder.log)" -ge 2 ]'
}
wait_for 400 "Cinder in the VM" ready || { vm 'tail -20 /var/log/cinder.log' >&2; exit 1; }
