"""Wait until Nova has each of these hosts, and make a flavor: `ready.py HOST ...`.

Run by the client's environment, which has openstacksdk.
"""
# mypy: ignore-errors
# (openstacksdk is not in the project's environment.)

import sys
import time
from typing import Any

import openstack

READY_S = 180
SERVICES = {"nova-compute", "nova-conductor", "nova-scheduler"}


def missing(compute: Any, hosts: set[str]) -> set[str]:
    """A host's services are there before the host can be told to do anything."""
    up = {each.binary for each in compute.services() if each.state == "up"}
    return SERVICES - up | hosts - {each.name for each in compute.hypervisors()}


def main(hosts: set[str]) -> None:
    compute = openstack.connect(cloud="admin").compute
    deadline = time.monotonic() + READY_S
    while left := missing(compute, hosts):
        if time.monotonic() > deadline:
            sys.exit(f"Nova is without {', '.join(sorted(left))} after {READY_S} s")
        time.sleep(0.5)
    if not any(compute.flavors()):
        compute.create_flavor(name="tiny", ram=160, vcpus=1, disk=0)


if __name__ == "__main__":
    main(set(sys.argv[1:]))
