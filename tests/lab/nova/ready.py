"""Wait until Nova hears of each of these hosts, and make a flavor: `ready.py HOST ...`.

Run by the client's environment, which has openstacksdk.
"""
# mypy: ignore-errors
# (openstacksdk is not in the project's environment.)

import os
import sys
import time
from typing import Any

import openstack

READY_S = 180
SERVICES = {"nova-compute", "nova-conductor", "nova-scheduler"}


def missing(compute: Any, hosts: set[str], begun: str) -> set[str]:
    """A host's services are there before the host can be told to do anything; and for a minute
    after they were stopped.  So each must have been heard of since `begun`.
    """
    services = list(compute.services())
    up = {each.binary for each in services if each.state == "up"}
    heard = {each.host for each in services if (each.updated_at or "") > begun}
    return SERVICES - up | hosts - heard | hosts - {each.name for each in compute.hypervisors()}


def main(hosts: set[str]) -> None:
    # The catalog may name the ledger, which does not have a host that is adopted from Nova.
    url = f"{os.environ['LAB_COMPUTE_URL']}/v2.1"
    compute = openstack.connect(cloud="admin", compute_endpoint_override=url).compute
    begun = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    deadline = time.monotonic() + READY_S
    while left := missing(compute, hosts, begun):
        if time.monotonic() > deadline:
            sys.exit(f"Nova is without {', '.join(sorted(left))} after {READY_S} s")
        time.sleep(0.5)
    if not any(compute.flavors()):
        compute.create_flavor(name="tiny", ram=160, vcpus=1, disk=0)


if __name__ == "__main__":
    main(set(sys.argv[1:]))
