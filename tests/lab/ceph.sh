#!/bin/bash
# ceph.sh up|down: a Ceph cluster of one monitor, manager and OSD (memstore: data lives in
# memory), with cephx, the pool "volumes", the user client.cinder, and on each host
# libvirt's secret with that user's key.  The hosts must be up.
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
D=$LAB_DIR/ceph KEYRING_LINK=/etc/ceph/ceph.client.cinder.keyring
export CEPH_ARGS="--conf $CEPH_CONF"
MONITOR="[v2:$LAB_ADDRESS:$LAB_MON_PORT/0,v1:$LAB_ADDRESS:$((LAB_MON_PORT + 1))/0]"

configuration() { # fsid
  cat <<C
[global]
fsid = $1
mon_initial_members = a
mon_host = $MONITOR
public_addr = $LAB_ADDRESS
cluster_addr = $LAB_ADDRESS
public_network = $LAB_NET.0/24
ms_bind_ipv6 = false
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_autoscale_mode = off
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_data_avail_warn = 1
mon_data_avail_crit = 1
osd_crush_chooseleaf_type = 0
osd_objectstore = memstore
memstore_device_bytes = 8589934592
# memstore writes its contents out only when it is stopped slowly.
osd_fast_shutdown = false
keyring = $D/\$name.keyring
run_dir = $D/run
admin_socket = $D/run/\$name.\$pid.asok
pid_file = $D/run/\$name.pid
log_file = $D/log/\$name.log
log_to_stderr = false
mon_cluster_log_file = $D/log/cluster.log
mon_data = $D/mon
osd_data = $D/osd
mgr_data = $D/mgr
C
}

make_monitor() {
  local fsid key; fsid=$(cat /proc/sys/kernel/random/uuid)
  mkdir -p "$D"/{run,log,mon,osd,mgr}
  configuration "$fsid" >"$CEPH_CONF"
  ceph-authtool --create-keyring "$D/mon.keyring" --gen-key -n mon. --cap mon 'allow *'
  ceph-authtool --create-keyring "$D/client.admin.keyring" --gen-key -n client.admin \
    --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
  ceph-authtool --create-keyring "$D/client.cinder.keyring" --gen-key -n client.cinder \
    --cap mon 'profile rbd' --cap osd 'profile rbd' --cap mgr 'profile rbd'
  for key in admin cinder; do
    ceph-authtool "$D/mon.keyring" --import-keyring "$D/client.$key.keyring"
  done
  printf '[mon.a]\nkeyring = %s/mon.keyring\n' "$D" >>"$CEPH_CONF"
  monmaptool --create --clobber --addv a "${MONITOR//\/0/}" --fsid "$fsid" "$D/monmap"
  ceph-mon -i a --mkfs --monmap "$D/monmap" --keyring "$D/mon.keyring"
}

make_rest() { # needs the monitor
  local uuid; uuid=$(cat /proc/sys/kernel/random/uuid)
  ceph auth get-or-create mgr.x mon 'allow profile mgr' osd 'allow *' -o "$D/mgr.x.keyring"
  ceph osd new "$uuid"
  ceph auth get-or-create osd.0 mon 'allow profile osd' mgr 'allow profile osd' osd 'allow *' \
    -o "$D/osd.0.keyring"
  ceph-osd -i 0 --mkfs --osd-uuid "$uuid"
}

pool_ready() { # every placement group active and clean, and the pool's free space known
  [[ $(timeout 10 ceph pg stat) =~ ^([0-9]+)\ pgs:\ ([0-9]+)\ active\+clean\; ]] || return 1
  [ "${BASH_REMATCH[1]}" = "${BASH_REMATCH[2]}" ] &&
    timeout 10 ceph df -f json | grep -q '"max_avail":[1-9]'
}

libvirt_secret() {
  [ -s "$D/secret_uuid" ] || cat /proc/sys/kernel/random/uuid >"$D/secret_uuid"
  local uuid uri; uuid=$(cat "$D/secret_uuid")
  cat >"$D/secret.xml" <<X
<secret ephemeral='no' private='yes'><uuid>$uuid</uuid>
  <usage type='ceph'><name>client.cinder of the lab</name></usage></secret>
X
  ceph-authtool -p -n client.cinder "$D/client.cinder.keyring" >"$D/secret.key"
  for uri in "$LAB_LIBVIRT_URI" "$LAB_LIBVIRT_URI_2"; do
    virsh -q -c "$uri" secret-define "$D/secret.xml" >/dev/null
    virsh -q -c "$uri" secret-set-value "$uuid" --file "$D/secret.key" >/dev/null
  done
  rm -f "$D/secret.key"
}

up() {
  local log=$LAB_DIR/log/ceph-make.log
  [ -e "$D/.made" ] || { rm -rf "$D"; mkdir -p "$D"; make_monitor >"$log" 2>&1; }
  spawn ceph-mon ceph-mon -i a -f
  wait_for 30 "Ceph's monitor" timeout 10 ceph mon stat
  [ -e "$D/.made" ] || { make_rest >>"$log" 2>&1; touch "$D/.made"; }
  spawn ceph-mgr ceph-mgr -i x -f
  spawn ceph-osd ceph-osd -i 0 -f
  if ! ceph osd pool ls | grep -qx volumes; then
    ceph osd pool create volumes 8 8 replicated >>"$log" 2>&1
    ceph osd pool application enable volumes rbd >>"$log" 2>&1
  fi
  wait_for 60 "Ceph's pool" pool_ready
  # os-brick reads the key from this fixed path when connection_info brings none.
  mkdir -p /etc/ceph
  [ -e $KEYRING_LINK ] || ln -s "$D/client.cinder.keyring" $KEYRING_LINK
  libvirt_secret
}

down() {
  # Host 2 keeps its secrets below LAB_DIR.
  [ ! -s "$D/secret_uuid" ] || ! running libvirtd-1 >/dev/null ||
    virsh -q -c "$LAB_LIBVIRT_URI" secret-undefine "$(cat "$D/secret_uuid")" >/dev/null 2>&1 || true
  local name; for name in ceph-osd ceph-mgr ceph-mon; do stop $name; done
  [ "$(readlink $KEYRING_LINK)" != "$D/client.cinder.keyring" ] || rm -f $KEYRING_LINK
}

"${1:?up or down}"
