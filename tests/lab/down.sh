#!/bin/bash
# down.sh [--purge]: stop what up.sh started and take its mounts away; --purge also removes
# the state, but neither environments, guest image nor logs.
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
for part in ledger cinder ceph libvirt; do "$LAB_SRC/$part.sh" down || say "$part: down failed"; done
# os-brick's RemoteFs connector never unmounts, neither does Cinder's driver.
sed -n "s#^[^ ]* \($LAB_DIR/[^ ]*\) .*#\1#p" /proc/mounts | sort -r | while read -r mount; do
  umount "$mount" || say "cannot unmount $mount"
done
if [ "${1:-}" = --purge ]; then
  find "$LAB_DIR" -mindepth 1 -maxdepth 1 ! -name 'venv*' ! -name guest ! -name log \
    -exec rm -rf --one-file-system {} +
fi
