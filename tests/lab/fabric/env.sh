# Settings of the fabric (README): the lab's, for two virtual machines that are hypervisors.  The first is
# the storage as well; FAB_VM says which one a script is about.  Everything is under a LAB_DIR and at ports of its own, so that both can be up together.
export LAB_DIR="${LAB_DIR:-/var/tmp/attachment-ledger-fabric}"
export LAB_LEDGER_PORT="${LAB_LEDGER_PORT:-18784}" LAB_CINDER_PORT="${LAB_CINDER_PORT:-18786}"
. "$(dirname "${BASH_SOURCE[0]}")/../env.sh"; . "$LAB_SRC/lib.sh"
export FAB_VM="${FAB_VM:-1}" FAB_SSH_PORTS="${FAB_SSH_PORTS:-18780}" # the port is that, and the number of the VM
export FAB_HANDS_PORT="${FAB_HANDS_PORT:-18785}" # what Cinder has done in the first (hands.py)
export FAB_CPUS="${FAB_CPUS:-1}" FAB_MEMORY="${FAB_MEMORY:-2048}" # MiB
FAB_SRC="$LAB_SRC/fabric" FAB_IMAGE="$LAB_DIR/image" FAB_HOST="fabric-$FAB_VM" FAB_SSH_PORT=$((FAB_SSH_PORTS + FAB_VM))
FAB_PROJECT_ID=11111111111111111111111111111111
export LEDGER_URL="http://127.0.0.1:$LAB_LEDGER_PORT"
mkdir -p "$FAB_IMAGE"

# In the VM, by one connection that stays open: a new one costs seconds under emulation.
# It also joins both sides: each finds the other's service at its own loopback.
FAB_SSH=(ssh -q -i "$FAB_IMAGE/key" -p "$FAB_SSH_PORT" -o UserKnownHostsFile=/dev/null
  -o StrictHostKeyChecking=no -o ControlPath="$LAB_DIR/run/ssh-$FAB_VM" -o ConnectTimeout=20
  -o Ciphers=aes128-gcm@openssh.com root@127.0.0.1)
vm() { "${FAB_SSH[@]}" "$@"; }
