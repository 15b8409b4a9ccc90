#!/bin/bash
# vm.sh up|put|off|down|freeze|thaw|run [command]: the hypervisor FAB_VM.  `up` boots it, on its former disk if it
# has one, until its storage is up and it answers to ssh; `off`: its power fails; `freeze`: nothing in it goes on,
# until `thaw`; `run`: a command, or a shell, in it.
. "$(dirname "$0")/env.sh"
VM=vm-$FAB_VM CONSOLE=$LAB_DIR/log/vm-console-$FAB_VM.log
DISK=$LAB_DIR/run/disk-$FAB_VM GROUP=$LAB_DIR/run/group-$FAB_VM # the volumes'
WIRE=$LAB_DIR/run/wire                                  # from VM to VM

up() {
  if ! running "$VM" >/dev/null; then
    port_free "$VM" "$FAB_SSH_PORT" FAB_SSH_PORTS
    [ -s "$DISK" ] || qemu-img create -q -f qcow2 -b "$FAB_IMAGE/disk" -F raw "$DISK"
    local more=()
    if [ "$FAB_VM" != 2 ]; then
      [ -s "$GROUP" ] || qemu-img create -q -f qcow2 "$GROUP" 40G
      more=(-drive "if=none,id=d1,file=$GROUP,cache=unsafe,discard=unmap" -device virtio-blk-pci,drive=d1)
    fi
    rm -f "$LAB_DIR/run/ssh-$FAB_VM" "$WIRE-$FAB_VM"; : >"$CONSOLE"
    # The kernel is an ELF file (PVH): nothing is decompressed.
    spawn "$VM" qemu-system-x86_64 -M q35,hpet=off -nodefaults -no-reboot -display none \
      -accel tcg,thread=multi,tb-size=256 -cpu Nehalem,+aes,+rdrand -smp "$FAB_CPUS" -m "$FAB_MEMORY" \
      -kernel "$LAB_DIR/guest/vmlinux" -initrd "$FAB_IMAGE/initramfs" \
      -append "fabric=$FAB_VM console=ttyS0 quiet loglevel=3 panic=-1 nokaslr mitigations=off no_timer_check random.trust_cpu=on audit=0 hardened_usercopy=off nowatchdog rcupdate.rcu_expedited=1 cryptomgr.notests net.ifnames=0" \
      -drive "if=none,id=d0,file=$DISK,cache=unsafe" -device virtio-blk-pci,drive=d0 "${more[@]}" \
      -netdev "user,id=n0,restrict=on,hostfwd=tcp:127.0.0.1:$FAB_SSH_PORT-:22" -device virtio-net-pci,netdev=n0 \
      -netdev "dgram,id=n1,local.type=unix,local.path=$WIRE-$FAB_VM,remote.type=unix,remote.path=$WIRE-$((3 - FAB_VM))" \
      -device "virtio-net-pci,netdev=n1,mac=52:54:00:91:00:0$FAB_VM" -serial "file:$CONSOLE"
    wait_daemon "$VM" grep -aqs FABRIC-READY "$CONSOLE"
  fi
  local there=(-R "127.0.0.1:8776:127.0.0.1:$LAB_CINDER_PORT") # each finds Cinder at its own loopback
  [ "$FAB_VM" != 1 ] || there+=(-L "127.0.0.1:$FAB_HANDS_PORT:127.0.0.1:8777")
  "${FAB_SSH[@]}" -O check 2>/dev/null || wait_for 60 "ssh to the VM" "${FAB_SSH[@]}" -M -N -f \
    -o ExitOnForwardFailure=yes "${there[@]}" -R "127.0.0.1:$LAB_LEDGER_PORT:127.0.0.1:$LAB_LEDGER_PORT"
}

put() { # the project's wheel, and what the tests need there
  local wheel=$LAB_DIR/run/wheel
  [ "$FAB_VM" != 1 ] || { rm -rf "$wheel"
    "$LAB_VENV/bin/pip" install -q --no-deps --no-build-isolation --target "$wheel" "$LAB_ROOT" >"$LAB_DIR/log/wheel.log" 2>&1; }
  tar -C "$wheel" -cf - . | vm 'tar -C /opt/agent/lib/python3.11/site-packages -xf -'
  tar -C "$LAB_ROOT" --exclude=__pycache__ -cf - tests/contracts tests/lab/fabric |
    vm 'mkdir -p /opt/project && tar -C /opt/project -xf -'
}

off() { # its memory goes before its sockets
  stop "$VM" KILL; rm -f "$LAB_DIR/run/ssh-$FAB_VM"
  wait_for 30 "the VM to be gone" port_free "$VM" "$FAB_SSH_PORT" FAB_SSH_PORTS
}
freeze() { kill -STOP "$(running "$VM")"; }
thaw() { kill -CONT "$(running "$VM")"; }
down() { off; rm -f "$DISK" "$GROUP"; }
run() { vm "$@"; }

"${1:?up, put, off, down, freeze, thaw or run}" "${@:2}"
