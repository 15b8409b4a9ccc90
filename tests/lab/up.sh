#!/bin/bash
# up.sh [quick|full] [cloud|all]: install what is missing and start the lab; again is harmless.
# `quick` has NFS volumes, `full` also Ceph's.  With "cloud" as second argument it stops
# before our own service and agent.  Root, Debian 12.
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
TIER=${1:-quick} UNTIL=${2:-all}
BACKENDS=nfs,fake

PACKAGES=(libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients libvirt-dev pkg-config gcc
  qemu-system-x86 qemu-utils busybox-static cpio lz4 sudo make)
# Debian's own Python comes without headers and venv.
[ "$(command -v "$LAB_PYTHON")" != /usr/bin/python3 ] || PACKAGES+=(python3-dev python3-venv)
if [ "$TIER" = full ]; then
  BACKENDS=nfs,rbd,fake
  PACKAGES+=(ceph-mon ceph-mgr ceph-osd ceph-common python3-rados python3-rbd qemu-block-extra)
fi

project_venv() { # ours, with libvirt-python built against the libvirt-dev installed before
  make -s -C "$LAB_ROOT" setup VENV="$LAB_VENV" PYTHON="$LAB_PYTHON"
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
machines() { packages "${PACKAGES[@]}" && "$LAB_SRC/guest.sh" && project_venv; }

[ "$(id -u)" = 0 ] || fail "root is needed: libvirtd, mounts and guests"
exec 9>"$LAB_DIR/up.lock"; flock 9
say "installing ($TIER)"
client_and_cinder() { cinder_venv && client_venv; }
together machines client_and_cinder
say "libvirt"; "$LAB_SRC/libvirt.sh" up
[ "$TIER" != full ] || { say "Ceph"; "$LAB_SRC/ceph.sh" up; }
say "Cinder with $BACKENDS"; "$LAB_SRC/cinder.sh" up "$BACKENDS"
[ "$UNTIL" = cloud ] || { say "service and agent"; "$LAB_SRC/ledger.sh" up; }
say "up: $CINDER_ENDPOINT, $LAB_LIBVIRT_URI, $LAB_LEDGER_URL"
