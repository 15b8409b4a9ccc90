#!/bin/bash
# libvirt.sh up|down: libvirtd as a plain process (no systemd, no D-Bus, no security
# driver), serving qemu:///system.  QEMU runs as root and emulates (TCG): nested KVM is
# not to be had everywhere the lab runs.
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
MARK='# written by the lab of attachment-ledger'
CONF=/etc/libvirt/qemu.conf

up() {
  if running libvirtd >/dev/null; then
    virsh -c "$LAB_LIBVIRT_URI" version >/dev/null 2>&1 && return 0
  elif virsh -c "$LAB_LIBVIRT_URI" version >/dev/null 2>&1; then
    fail "a libvirtd of this machine serves $LAB_LIBVIRT_URI: stop it, its sockets as well"
  fi
  # libvirtd looks the default account up before it reads who QEMU shall run as.  The
  # package that would create it drags systemd in.
  getent group libvirt-qemu >/dev/null || groupadd -r libvirt-qemu
  getent passwd libvirt-qemu >/dev/null ||
    useradd -r -g libvirt-qemu -M -d /nonexistent -s /usr/sbin/nologin libvirt-qemu
  mkdir -p /etc/libvirt
  if [ -e $CONF ] && [ "$(head -1 $CONF)" != "$MARK" ]; then cp $CONF $CONF.before-lab; fi
  cat >$CONF <<C
$MARK
user = "root"
group = "root"
stdio_handler = "file"
security_driver = "none"
remember_owner = 0
cgroup_controllers = [ ]
namespaces = [ ]
C
  [ -s "$LAB_DIR/host_uuid" ] || cat /proc/sys/kernel/random/uuid >"$LAB_DIR/host_uuid"
  cat >"$LAB_DIR/etc/libvirtd.conf" <<C
host_uuid = "$(cat "$LAB_DIR/host_uuid")"
auth_unix_rw = "none"
log_outputs = "2:file:$LAB_DIR/log/libvirtd.log"
log_filters = "4:util.dbus 4:node_device 4:network 4:util.dnsmasq"
C
  spawn libvirtd libvirtd -f "$LAB_DIR/etc/libvirtd.conf" -p "$LAB_DIR/run/libvirtd.own.pid"
  wait_for 30 libvirtd virsh -c "$LAB_LIBVIRT_URI" version
}

down() { # the guests of the lab and of the contract tests are known by their names
  local name
  if running libvirtd >/dev/null; then
    for name in $(timeout 20 virsh -q -c "$LAB_LIBVIRT_URI" list --all --name | grep -E '^(lab|contract)-'); do
      timeout 20 virsh -q -c "$LAB_LIBVIRT_URI" destroy "$name" >/dev/null 2>&1 || true
      timeout 20 virsh -q -c "$LAB_LIBVIRT_URI" undefine "$name" >/dev/null 2>&1 || true
    done
  fi
  stop libvirtd
  if [ "$(head -1 $CONF 2>/dev/null)" = "$MARK" ]; then
    rm -f $CONF
    [ ! -e $CONF.before-lab ] || mv $CONF.before-lab $CONF
  fi
}

"${1:?up or down}"
