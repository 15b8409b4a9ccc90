#!/bin/bash
# up.sh [quick|full|nova] [cloud|all]: install what is missing and start the lab; again is harmless.
# `quick` has volumes on two NFS shares, `full` also Ceph's; `nova` has a real Nova and nothing of ours.  With "cloud" as second argument it stops
# before our own service and agent.  Root, Debian 12.
[ "${1:-}" != nova ] || . "$(dirname "$0")/nova/env.sh"
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
TIER=${1:-quick} UNTIL=${2:-all}
BACKENDS=nfs,nfs2,fake

# What the lab, its tests, os-brick and Cinder's drivers call: package=command, or a package
# without commands of its own.  CHECKED comes first: with it the rest is checked.
CHECKED=(iproute2=ss iproute2=ip procps=ps procps=pgrep mount=mount util-linux=nsenter util-linux=unshare make=make)
PACKAGES=(libvirt-daemon=libvirtd libvirt-daemon-driver-qemu libvirt-clients=virsh
  libvirt-dev pkg-config=pkg-config gcc=gcc
  qemu-system-x86=qemu-system-x86_64 qemu-utils=qemu-img qemu-utils=qemu-io cryptsetup-bin=cryptsetup
  busybox-static=busybox cpio=cpio lz4=lz4 syslinux=syslinux mtools=mcopy dosfstools=mkfs.fat
  sudo=sudo chromium=chromium fonts-dejavu-core)
# Debian's own Python comes without headers and venv.
case $(command -v "$LAB_PYTHON") in
  '' | /usr/bin/python3) CHECKED+=(python3=python3 python3-dev python3-venv) ;;
esac
if [ "$TIER" = full ]; then
  BACKENDS=nfs,nfs2,rbd,fake
  PACKAGES+=(ceph-mon=ceph-mon ceph-mgr=ceph-mgr ceph-osd=ceph-osd ceph-common=rbd
    python3-rados python3-rbd qemu-block-extra)
fi

own_venv() { make -s -C "$LAB_ROOT" setup VENV="$LAB_VENV" PYTHON="$LAB_PYTHON"; }
project_venv() { # ours, with libvirt-python built against the libvirt-dev installed before
  own_venv
  "$LAB_VENV/bin/python" -c 'import libvirt, os_brick' 2>/dev/null ||
    "$LAB_VENV/bin/pip" install -q --disable-pip-version-check --require-hashes \
      -r "$LAB_ROOT/requirements-agent.lock"
}

together() { # function...: at the same time, each with a log; fails if one does
  local name pids=() bad=0
  for name; do ("$name" >"$LAB_DIR/log/install-$name.log" 2>&1) & pids+=($!); done
  for name; do
    wait "${pids[0]}" || { tail -n 20 "$LAB_DIR/log/install-$name.log" >&2; bad=1; }
    pids=("${pids[@]:1}")
  done
  return $bad
}
cinder_venv() { venv "$LAB_DIR/venv-cinder" "$LAB_SRC/requirements-cinder.txt"; }
client_venv() { venv "$LAB_DIR/venv-client" "$LAB_SRC/requirements-client.txt"; }
machines() {
  packages "${PACKAGES[@]}" && tools "${PACKAGES[@]}" && "$LAB_SRC/guest.sh" && project_venv
}

python_fits() { # Ceph's modules are built for Debian's Python
  local wanted='>= (3, 11)'; [ "$TIER" != full ] || wanted='== (3, 11)'
  "$LAB_PYTHON" -c "import sys; sys.exit(not sys.version_info[:2] $wanted)"
}

ports_free() {
  port_free keystone "$LAB_KEYSTONE_PORT" LAB_KEYSTONE_PORT
  port_free gate "$LAB_GATE_PORT" LAB_GATE_PORT
  port_free cinder "$LAB_CINDER_PORT" LAB_CINDER_PORT
  port_free ledger "$LAB_LEDGER_PORT" LAB_LEDGER_PORT
  [ "$TIER" != full ] || port_free ceph-mon "$LAB_MON_PORT" LAB_MON_PORT
}

kernel_fits() { # what containers often may not
  unshare --mount --net --uts true ||
    fail "no namespaces to be had (unshare): in a container, it must be a privileged one"
  unshare --net ip link add lab-1 type veth peer name lab-2 ||
    fail "no pair of virtual network interfaces to be had (ip link add ... type veth)"
  unshare --mount mount --bind "$LAB_DIR" "$LAB_DIR" ||
    fail "bind mounts are not allowed: in a container, it must be a privileged one"
}

[ "$(id -u)" = 0 ] || fail "root is needed: libvirtd, mounts and guests"
grep -qs '^VERSION_ID="12"' /etc/os-release || fail "Debian 12 is needed: the packages are its"
exec 9>"$LAB_DIR/up.lock"; flock 9
say "installing ($TIER)"
packages "${CHECKED[@]}"
tools "${CHECKED[@]}"
ports_free
if [ "$TIER" = nova ]; then
  # Real volumes are for real guests, which there are where they can be.
  BACKENDS=fake; if (kernel_fits) 2>/dev/null; then BACKENDS=fake,nfs; fi
else
  kernel_fits
fi
python_fits || fail "$LAB_PYTHON: the lab needs Python >= 3.11, and 3.11 itself for Ceph"
client_and_cinder() { cinder_venv && client_venv; }
keystone() { "$LAB_SRC/keystone.sh" fill; }
nova() { machines && "$LAB_SRC/nova.sh" fill; }
if [ "$TIER" = nova ]; then
  together nova client_and_cinder keystone
  UNTIL=cloud
else
  together machines client_and_cinder keystone
  say "hosts"; "$LAB_SRC/hosts.sh" up
fi
say "Keystone"; "$LAB_SRC/keystone.sh" up
[ "$TIER" != full ] || { say "Ceph"; "$LAB_SRC/ceph.sh" up; }
say "Cinder with $BACKENDS"; "$LAB_SRC/cinder.sh" up "$BACKENDS"
[ "$TIER" != nova ] || { say "Nova"; "$LAB_SRC/nova.sh" up; }
[ "$UNTIL" = cloud ] || { say "service and agents"; "$LAB_SRC/ledger.sh" up; }
say "up: $CINDER_ENDPOINT, $LAB_COMPUTE_URL"
