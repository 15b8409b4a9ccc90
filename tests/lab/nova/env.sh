# Settings of the tier with Nova: sourced before ../env.sh, which has the rest.  It has a directory and
# ports of its own, so it can be up beside another tier; all of it listens at the loopback.
export LAB_DIR="${LAB_DIR:-/var/tmp/attachment-ledger-lab-nova}" LAB_NET=127.0.0
export LAB_KEYSTONE_PORT="${LAB_KEYSTONE_PORT:-25001}" LAB_CINDER_PORT="${LAB_CINDER_PORT:-28776}"
export LAB_GATE_PORT="${LAB_GATE_PORT:-28777}" LAB_LEDGER_PORT="${LAB_LEDGER_PORT:-28775}"
export LAB_NOVA_PORT="${LAB_NOVA_PORT:-28774}" LAB_PLACEMENT_PORT="${LAB_PLACEMENT_PORT:-28778}"
export LAB_NEUTRON_PORT="${LAB_NEUTRON_PORT:-29696}" LAB_MARIADB_PORT="${LAB_MARIADB_PORT:-23306}"
export LAB_RABBIT_PORT="${LAB_RABBIT_PORT:-25672}" LAB_EPMD_PORT="${LAB_EPMD_PORT:-24369}"
export LAB_GLANCE_PORT="${LAB_GLANCE_PORT:-29292}"
export LAB_COMPUTE_URL="http://127.0.0.1:$LAB_NOVA_PORT" # whom the catalog calls the compute service
# The second host is that of real guests; those of the fake driver are named in nova.sh.
export LAB_HOST_2=compute-3 LAB_NAMESPACES="--mount --uts" LAB_DETACH_ATTEMPTS=8
export LAB_PARTS="ledger glance nova keystone cinder hosts" LAB_SERVICES="placement network"
. "$(dirname "${BASH_SOURCE[0]}")/../env.sh"
