#!/bin/bash
# up.sh [quick|full] [cloud|all]: install what is missing and start the lab; again is harmless.
# `quick` has volumes on two NFS shares, `full` also Ceph's.  With "cloud" as second argument it stops
# before our own service and agent.  Root, Debian 12.
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
TIER=${1:-quick} UNTIL=${2:-all}
BACKENDS=nfs,nfs2,fake

PACKAGES=(libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients libvirt-dev pkg-config gcc
  qemu-system-x86 qemu-utils busybox-static cpio lz4 sudo
  syslinux mtools dosfstools cryptsetup-bin iproute2 procps)
# Debian's own Python comes without headers and venv.
TOOLS=(make)
case $(command -v "$LAB_PYTHON") in
  '' | /usr/bin/python3) TOOLS+=(python3 python3-dev python3-venv) ;;
esac
if [ "$TIER" = full ]; then
  BACKENDS=nfs,nfs2,rbd,fake
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

python_fits() { # Ceph's modules are built for Debian's Python
  local wanted='>= (3, 11)'; [ "$TIER" != full ] || wanted='== (3, 11)'
  "$LAB_PYTHON" -c "import sys; sys.exit(not sys.version_info[:2] $wanted)"
}

[ "$(id -u)" = 0 ] || fail "root is needed: libvirtd, mounts and guests"
grep -qs '^VERSION_ID="12"' /etc/os-release || fail "Debian 12 is needed: the packages are its"
exec 9>"$LAB_DIR/up.lock"; flock 9
say "installing ($TIER)"
packages "${TOOLS[@]}"
python_fits || fail "$LAB_PYTHON: the lab needs Python >= 3.11, and 3.11 itself for Ceph"
client_and_cinder() { cinder_venv && client_venv; }
together machines client_and_cinder
say "hosts"; "$LAB_SRC/hosts.sh" up
[ "$TIER" != full ] || { say "Ceph"; "$LAB_SRC/ceph.sh" up; }
say "Cinder with $BACKENDS"; "$LAB_SRC/cinder.sh" up "$BACKENDS"
[ "$UNTIL" = cloud ] || { say "service and agents"; "$LAB_SRC/ledger.sh" up; }
say "up: $CINDER_ENDPOINT, $LAB_LIBVIRT_URI, $LAB_LEDGER_URL"
