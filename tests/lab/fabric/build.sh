#!/bin/bash
# build.sh: the disk image of a hypervisor with real kernel storage, in $LAB_DIR/image: Debian's
# packages, the environments /opt/agent (its lock) and /opt/nova, the files of root/.  Cinder's is here.
# Each part is made once, and again if what makes it has changed.  Its kernel is the lab's guest's.
. "$(dirname "$0")/env.sh"
ROOT=$FAB_IMAGE/root
PACKAGES=busybox-static,udev,kmod,procps,psmisc,iproute2,openssh-server,python3,hostname,netbase,sudo
PACKAGES+=,util-linux,mount,open-iscsi,multipath-tools,kpartx,sg3-utils,targetcli-fb,python3-rtslib-fb
PACKAGES+=,nvme-cli,cryptsetup-bin,lsscsi,lvm2,thin-provisioning-tools,dmsetup,e2fsprogs,qemu-system-x86
PACKAGES+=,qemu-utils,libvirt-daemon,libvirt-daemon-driver-qemu,libvirt-clients

sum() { cat "$@" | sha256sum | cut -c1-16; }
part() { # name sum function...: unless it was made of the same
  local name=$1 made=$2; shift 2
  [ "$(cat "$FAB_IMAGE/.$name" 2>/dev/null)" != "$made" ] || return 0
  say "$name"; rm -f "$FAB_IMAGE/.$name"
  ("$@" >"$LAB_DIR/log/build-$name.log" 2>&1) & # not in a condition, or no command in it would end it
  wait $! || { tail -5 "$LAB_DIR/log/build-$name.log" >&2; return 1; }
  echo "$made" >"$FAB_IMAGE/.$name"
}

system() {
  rm -rf "$ROOT"; rm -f "$FAB_IMAGE"/.{agent,nova}
  mmdebstrap -q --mode=root --variant=apt --include="$PACKAGES" \
    --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
    --dpkgopt='path-exclude=/usr/share/'{man,doc,locale}'/*' bookworm "$ROOT"
}

environment() { # name pip-options...: for the VM's Python, which is Debian's as well
  local at=$ROOT/opt/$1; shift
  rm -rf "$at"
  /usr/bin/python3 -m venv --without-pip "$at"
  "$LAB_VENV/bin/python" -m pip --python "$at/bin/python3" install -q --disable-pip-version-check "$@"
  grep -rlI "^#!$ROOT" "$at/bin" | xargs -r sed -i "1s#$ROOT##"
}

disk() {
  local r=$ROOT
  rm -rf "$r/lib/modules" "$r/opt/pytest"
  dpkg-deb --fsys-tarfile "$LAB_DIR"/guest/linux-image-*.deb | tar -C "$r" -xf - ./lib/modules
  chroot "$r" depmod "$(ls "$r/lib/modules")"
  cp -a "$FAB_SRC/root/." "$r/"; chmod 755 "$r/usr/sbin/fabric-rc"; chown -R 0:0 "$r/etc" "$r/usr/sbin/fabric-rc"
  gcc -m32 -nostdlib -Wl,-Ttext=0,--oformat=binary,--build-id=none -o "$r/opt/writer" "$FAB_SRC/writer.S"
  sed '/--hash/d; s/ *\\$//' "$LAB_ROOT/requirements.lock" >"$FAB_IMAGE/constraints"
  "$LAB_VENV/bin/pip" install -q --target "$r/opt/pytest" -c "$FAB_IMAGE/constraints" pytest
  [ -s "$FAB_IMAGE/key" ] || ssh-keygen -q -t ed25519 -N '' -f "$FAB_IMAGE/key"
  install -D -m600 "$FAB_IMAGE/key.pub" "$r/root/.ssh/authorized_keys"
  rm -f "$r/etc/resolv.conf"
  sed -i '1s#/bin/bash$#/bin/sh#' "$r/etc/passwd" # starts in a third of the time
  # libvirtd looks it up before it reads who QEMU runs as.
  chroot "$r" id libvirt-qemu || chroot "$r" useradd -r -U -M -s /usr/sbin/nologin libvirt-qemu
  rm -f "$FAB_IMAGE/disk"; truncate -s 8G "$FAB_IMAGE/disk"
  mke2fs -q -t ext4 -E lazy_itable_init=1,lazy_journal_init=1 -d "$r" "$FAB_IMAGE/disk"
  # The guest's modules, and another init after them: what comes later counts.
  { cat "$LAB_DIR/guest/initramfs.cpio"
    cd "$FAB_SRC/initramfs" && find . | cpio --quiet -R 0:0 -o -H newc; } >"$FAB_IMAGE/initramfs"
}

[ "$(id -u)" = 0 ] || fail "root is needed"
exec 9>"$FAB_IMAGE/lock"; flock 9
packages qemu-system-x86 qemu-utils mmdebstrap lz4 cpio e2fsprogs busybox-static syslinux mtools \
  dosfstools libvirt-dev pkg-config gcc openssh-client iproute2 procps make
"$LAB_SRC/guest.sh"
make -s -C "$LAB_ROOT" setup VENV="$LAB_VENV" PYTHON="$LAB_PYTHON"
part system "$(echo "$PACKAGES" | sha256sum)" system
AGENT=$LAB_ROOT/requirements-agent.lock
part agent "$(sum "$AGENT")" environment agent --require-hashes -r "$AGENT"
NOVA=$LAB_SRC/requirements-nova.txt
part nova "$(sum "$NOVA")" environment nova -r "$NOVA"
part disk "$(sum $(find "$FAB_SRC"/{root,initramfs,build.sh,writer.S} -type f | sort) "$LAB_DIR/guest/.made-by" \
  "$FAB_IMAGE"/.{system,agent,nova} "$LAB_ROOT/requirements.lock")" disk
venv "$LAB_DIR/venv-cinder" "$LAB_SRC/requirements-cinder.txt"
say "image: $(du -sh "$FAB_IMAGE/disk" | cut -f1)"
