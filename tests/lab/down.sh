#!/bin/bash
# down.sh [--purge]: stop what up.sh started and take its mounts away; --purge also removes
# the state, but neither environments, guest image nor logs.  Fails if something is left.
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
BAD=0
for part in ${LAB_PARTS:-ledger glance keystone cinder ceph hosts}; do
  "$LAB_SRC/$part.sh" down || { say "$part: down failed"; BAD=1; }
done
# os-brick's RemoteFs connector never unmounts, neither does Cinder's driver.
unmount
! grep -qF " $LAB_DIR/" /proc/mounts || { say "a mount is left: see /proc/mounts"; BAD=1; }

ours() { # pid: started by spawn (which marks it) or by something so started, or a guest of our hosts
  local text
  { mapfile -d '' -t text <"/proc/$1/environ"; } 2>/dev/null || return 1
  [[ " ${text[*]} " != *" LAB_DAEMON=$LAB_DIR "* ]] || return 0
  { mapfile -d '' -t text <"/proc/$1/cmdline"; } 2>/dev/null || return 1
  [[ "${text[*]}" =~ guest=$GUESTS ]] || return 1
  # QEMU's environment is empty, but each host has a directory of its own there.
  [ "/proc/$1/root/var/lib/libvirt" -ef "$LAB_HOST_2_DIR/lib" ] ||
    { [ -e "$LAB_DIR/host_uuid-1" ] && [ "/proc/$1/root/var/lib/libvirt" -ef /var/lib/libvirt ]; }
}
for process in /proc/[0-9]*; do
  pid=${process#/proc/}
  ours "$pid" || continue
  say "still running: $pid $(tr '\0' ' ' <"$process/cmdline" 2>/dev/null)"; BAD=1
done
if [ "${1:-}" = --purge ] && [ $BAD = 0 ]; then
  find "$LAB_DIR" -mindepth 1 -maxdepth 1 ! -name 'venv*' ! -name guest ! -name log \
    -exec rm -rf --one-file-system {} +
fi
exit $BAD
