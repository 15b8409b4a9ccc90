#!/bin/bash
# hosts.sh up|down|start N|off N|run N command...: the two hosts with hypervisors.  Each has
# a libvirtd as a plain process (no systemd, no D-Bus, no security driver); QEMU runs as root
# and emulates (TCG): nested KVM is not to be had everywhere the lab runs.
#
# Host 1 is this machine and serves qemu:///system.  Host 2 is the mount, network and UTS
# namespaces of a process that only sleeps: what is mounted there nobody else sees, and it
# goes with the host.  A veth pair joins them.  The address of host 1 is on its loopback
# interface, so that what listens there does not depend on host 2.
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
MARK='# written by the lab of attachment-ledger'
CONF=/etc/libvirt/qemu.conf

qemu_conf() { # address
  cat <<C
$MARK
user = "root"
group = "root"
stdio_handler = "file"
security_driver = "none"
remember_owner = 0
cgroup_controllers = [ ]
namespaces = [ ]
migration_address = "$1"
migration_host = "$1"
C
}

libvirtd_conf() { # number address: the other host's libvirtd comes by TCP, to migrate guests
  local uuid=$LAB_DIR/host_uuid-$1
  [ -s "$uuid" ] || cat /proc/sys/kernel/random/uuid >"$uuid"
  cat <<C
host_uuid = "$(cat "$uuid")"
auth_unix_rw = "none"
listen_tls = 0
listen_tcp = 1
auth_tcp = "none"
listen_addr = "$2"
log_outputs = "2:file:$LAB_DIR/log/libvirtd-$1.log"
log_filters = "4:util.dbus 4:node_device 4:network 4:util.dnsmasq"
C
}

account() { # libvirtd looks it up before it reads who QEMU shall run as; the package that
  # would create it drags systemd in
  getent group libvirt-qemu >/dev/null || groupadd -r libvirt-qemu
  getent passwd libvirt-qemu >/dev/null ||
    useradd -r -g libvirt-qemu -M -d /nonexistent -s /usr/sbin/nologin libvirt-qemu
}

machine_1() {
  [ -n "$(ip addr show dev lo to "$LAB_ADDRESS")" ] || ip addr add "$LAB_ADDRESS/32" dev lo
  if ! running libvirtd-1 >/dev/null && virsh -c "$LAB_LIBVIRT_URI" version >/dev/null 2>&1; then
    fail "a libvirtd of this machine serves $LAB_LIBVIRT_URI: stop it, its sockets as well"
  fi
  mkdir -p /etc/libvirt
  if [ -e $CONF ] && [ "$(head -1 $CONF)" != "$MARK" ]; then cp $CONF $CONF.before-lab; fi
  qemu_conf "$LAB_ADDRESS" >$CONF
}

machine_2() {
  ! running "$LAB_HOST_2" >/dev/null || return 0
  mkdir -p "$LAB_HOST_2_DIR"/{etc,lib,cache,log}
  # As after a boot: nothing of what ran before is in /run.
  rm -rf "$LAB_HOST_2_DIR/run"; mkdir "$LAB_HOST_2_DIR/run"
  qemu_conf "$LAB_ADDRESS_2" >"$LAB_HOST_2_DIR/etc/qemu.conf"
  mkdir -p /run/libvirt /var/{lib,cache,log}/libvirt
  # shellcheck disable=SC2086  # several words
  spawn "$LAB_HOST_2" unshare $LAB_NAMESPACES "$LAB_SRC/hosts.sh" inside
  local pid; pid=$(running "$LAB_HOST_2")
  wait_for 10 "the namespaces of $LAB_HOST_2" test -e "$LAB_HOST_2_DIR/run/booted"
  [[ $LAB_NAMESPACES == *--net* ]] || return 0
  ip link add lab-1 type veth peer name lab-2 netns "$pid"
  ip link set lab-1 up
  ip route add "$LAB_ADDRESS_2" dev lab-1 src "$LAB_ADDRESS"
  nsenter --target "$pid" --net sh -e <<C
ip link set lo up
ip addr add $LAB_ADDRESS_2/24 dev lab-2
ip link set lab-2 up
C
}

inside() { # the process that is host 2
  echo "$LAB_HOST_2" >/proc/sys/kernel/hostname
  unmount # copies of what the first host has mounted
  mount --bind "$LAB_HOST_2_DIR/etc" /etc/libvirt
  mount --bind "$LAB_HOST_2_DIR/run" /run/libvirt
  local part; for part in lib cache log; do
    mount --bind "$LAB_HOST_2_DIR/$part" "/var/$part/libvirt"
  done
  printf '127.0.0.1 localhost\n%s %s\n' "$LAB_ADDRESS_2" "$LAB_HOST_2" >"$LAB_HOST_2_DIR/hosts"
  mount --bind "$LAB_HOST_2_DIR/hosts" /etc/hosts
  if [ -e /etc/nvme/hostnqn ]; then # Ceph's packages bring nvme-cli, which gives a machine its name
    echo "nqn.2014-08.org.nvmexpress:uuid:$(cat /proc/sys/kernel/random/uuid)" >"$LAB_HOST_2_DIR/hostnqn"
    mount --bind "$LAB_HOST_2_DIR/hostnqn" /etc/nvme/hostnqn
  fi
  touch /run/libvirt/booted
  exec sleep infinity
}

uri() { if [ "$1" = 1 ]; then echo "$LAB_LIBVIRT_URI"; else echo "$LAB_LIBVIRT_URI_2"; fi; }

start() { "$LAB_PYTHON" "$LAB_SRC/reaper.py" "$LAB_SRC/hosts.sh" begin "$1"; } # number

begin() { # number
  local n=$1 address=$LAB_ADDRESS conf=$LAB_DIR/etc/libvirtd-$1.conf
  [ "$n" = 1 ] || address=$LAB_ADDRESS_2
  "machine_$n"
  libvirtd_conf "$n" "$address" >"$conf"
  # shellcheck disable=SC2046  # several words, or none
  spawn "libvirtd-$n" $(enter "$n") libvirtd --listen -f "$conf" -p "$LAB_DIR/run/libvirtd-$n.own.pid"
  wait_for 30 "libvirtd of host $n" virsh -c "$(uri "$n")" version
}

off() { # number: the power fails; agent and libvirtd see nothing of how the guests end
  local n=$1 name mounts pid
  # shellcheck disable=SC2046  # several words, or none
  mounts=$($(enter "$n") readlink /proc/self/ns/mnt)
  for name in "agent-$n" "libvirtd-$n"; do stop "$name" KILL; done
  for pid in $(pgrep -f "^/usr/bin/qemu-[^ ]* -name guest=$GUESTS"); do
    [ "$(readlink "/proc/$pid/ns/mnt")" != "$mounts" ] || kill -KILL "$pid" || true
  done
  [ "$n" = 1 ] || stop "$LAB_HOST_2" KILL
}

run() { # number command...
  local n=$1; shift
  # shellcheck disable=SC2046  # several words, or none
  exec $(enter "$n") "$@"
}

up() { # what guests a run left that was cut short, its power say, are in nobody's way
  local n; account
  for n in 1 2; do
    ! running "libvirtd-$n" >/dev/null || continue
    start $n
    remove_guests $n
  done
}

remove_guests() { # number: those whose names are ours
  local name virsh; virsh="timeout 20 virsh -q -c $(uri "$1")"
  running "libvirtd-$1" >/dev/null || return 0
  for name in $($virsh list --all --name | grep -E "^$GUESTS"); do
    $virsh destroy "$name" >/dev/null 2>&1 || true
    $virsh undefine "$name" >/dev/null 2>&1 || true
  done
}

down() {
  local n; for n in 1 2; do remove_guests $n; stop "libvirtd-$n"; done
  stop "$LAB_HOST_2" KILL # and with it its mounts and the veth pair
  [ -e "$LAB_DIR/host_uuid-1" ] || return 0 # this machine was none of the hosts
  ip addr del "$LAB_ADDRESS/32" dev lo 2>/dev/null || true
  if [ "$(head -1 $CONF 2>/dev/null)" = "$MARK" ]; then
    rm -f $CONF
    [ ! -e $CONF.before-lab ] || mv $CONF.before-lab $CONF
  fi
}

"${1:?up, down, start, off or run}" "${@:2}"
