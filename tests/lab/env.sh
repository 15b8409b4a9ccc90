# Settings of the lab, sourced by its scripts and by whoever wants to talk to it by hand.
# Everything the lab makes is under LAB_DIR; each setting can be given from outside.
# `su` leaves root's own tools out of PATH; another cloud's credentials would lead there.
export PATH="$PATH:/usr/sbin:/sbin"
unset "${!OS_@}"
export LAB_DIR="${LAB_DIR:-/var/tmp/attachment-ledger-lab}"
export LAB_PYTHON="${LAB_PYTHON:-python3}"
LAB_SRC="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
LAB_ROOT="$(cd "$LAB_SRC/../.." && pwd)"
export LAB_SRC LAB_ROOT
export LAB_VENV="${LAB_VENV:-$LAB_ROOT/.venv}" # the project's own: service, agent, pytest

export LAB_CINDER_PORT="${LAB_CINDER_PORT:-18776}"
export LAB_LEDGER_PORT="${LAB_LEDGER_PORT:-18774}"
export LAB_GATE_PORT="${LAB_GATE_PORT:-18777}"
export LAB_MON_PORT="${LAB_MON_PORT:-16789}"
export LAB_KEYSTONE_PORT="${LAB_KEYSTONE_PORT:-15001}"
export LAB_GLANCE_PORT="${LAB_GLANCE_PORT:-19292}"

# How often a guest is asked to let go of a disk, 6 s each; some guests here never do.
export LAB_DETACH_ATTEMPTS="${LAB_DETACH_ATTEMPTS:-2}"

# Two hosts with hypervisors: this machine, and one in namespaces of its own (hosts.sh).
export LAB_NET="${LAB_NET:-10.77.0}"
export LAB_HOST=compute-1 LAB_ADDRESS="$LAB_NET.1" LAB_LIBVIRT_URI="qemu:///system"
export LAB_HOST_2="${LAB_HOST_2:-compute-2}" LAB_ADDRESS_2="$LAB_NET.2"
export LAB_HOST_2_DIR="$LAB_DIR/$LAB_HOST_2"
export LAB_NAMESPACES="${LAB_NAMESPACES:---mount --net --uts}" # that the second has of its own
export LAB_LIBVIRT_URI_2="qemu+unix:///system?socket=$LAB_HOST_2_DIR/run/libvirt-sock"
# A proxy that pip needs is not asked for what is here.
export no_proxy="localhost,127.0.0.1,$LAB_ADDRESS,$LAB_ADDRESS_2${no_proxy:+,$no_proxy}"
export NO_PROXY="$no_proxy"

# Of all encrypted volumes: Cinder and the agents have it, as an operator would give it to them.
export LAB_FIXED_KEY=1ab1ab0c0ffee0c0ffee0c0ffee0c0ffee0c0ffee0c0ffee0c0ffee0c0ffee00

export CEPH_CONF="$LAB_DIR/ceph/ceph.conf"
export CINDER_ENDPOINT="http://127.0.0.1:$LAB_CINDER_PORT/v3"
export LAB_LEDGER_URL="http://$LAB_ADDRESS:$LAB_LEDGER_PORT"
export LAB_COMPUTE_URL="${LAB_COMPUTE_URL:-$LAB_LEDGER_URL}" # whom the catalog calls the compute service
export LAB_OPERATOR_TOKEN=lab-operator-0123456789abcdef0123456789
export LAB_AGENT_TOKEN=lab-agent-0123456789abcdef0123456789
export LAB_AGENT_TOKEN_2=lab-agent-2-0123456789abcdef0123456789
export LAB_GATE_URL="http://$LAB_ADDRESS:$LAB_GATE_PORT" # Cinder, as its clients see it

# What the contract tests (tests/contracts) hold the simulations against.
export LEDGER_LAB_CINDER="$CINDER_ENDPOINT" LEDGER_LAB_LIBVIRT="$LAB_LIBVIRT_URI"
export LEDGER_LAB_GUEST="$LAB_DIR/guest" LEDGER_LAB_NFS_EXPORT="127.0.0.1:$LAB_DIR/export/nfs"

export LEDGER_LAB_KEYSTONE="http://$LAB_ADDRESS:$LAB_KEYSTONE_PORT/v3" LEDGER_LAB_KEYSTONE_PASSWORD=lab-admin
export LAB_GLANCE_URL="http://$LAB_ADDRESS:$LAB_GLANCE_PORT" # up only for the tests that glance.sh names
export LAB_SERVICES="${LAB_SERVICES:-}" # that the catalog has more than Cinder, and compute services

# What our own command line reads.
export LEDGER_URL="$LAB_LEDGER_URL" LEDGER_TOKEN="$LAB_OPERATOR_TOKEN"

# What the unmodified openstack CLI reads: the clouds are called like the users (keystone_cloud.py).
export OS_CLIENT_CONFIG_FILE="$LAB_DIR/etc/clouds.yaml" OS_CLOUD=member
