"""Make the volume types and wait until each backend can make volumes.

A type is called like its backend, "<backend>-multi" is one for multi-attach volumes, and
"<backend>-luks" for encrypted ones, where there are data; those of "<backend>-limited" have
a QoS spec for the front end.  Volumes of the type "lab" may
live wherever there are data: Cinder migrates none to a backend that its type excludes.

A service may call itself up before its driver is initialised and before the
scheduler has heard of its pool: the proof is that the scheduler lists the pool.
"""

from __future__ import annotations

import sys
import time

from cinderclient import client

from tests.lab.people import person

READY_S = 90
LUKS = {
    "provider": "luks",
    "cipher": "aes-xts-plain64",
    "key_size": 256,
    "control_location": "front-end",
}

#: 300 requests per second and GiB, and what no front end knows.
LIMITED = {"consumer": "front-end", "total_iops_sec_per_gb": "300", "minIOPS": "5"}


def pools(cinder: client.Client) -> set[str]:
    return {pool.name.partition("@")[2].partition("#")[0] for pool in cinder.pools.list()}


def make_types(cinder: client.Client, backends: set[str]) -> None:
    types = {backend: {"volume_backend_name": backend} for backend in backends}
    for backend in backends:
        keys = {"volume_backend_name": backend, "multiattach": "<is> True"}
        types[f"{backend}-multi"] = keys
    types |= {f"{backend}-luks": types[backend] for backend in backends - {"fake"}}
    types |= {f"{backend}-limited": types[backend] for backend in backends}
    types["lab"] = {"keeps_data": "<is> True"}
    present = {kind.name for kind in cinder.volume_types.list()}
    for name in sorted(types.keys() - present):
        made = cinder.volume_types.create(name)
        made.set_keys(types[name])
        if name.endswith("-luks"):
            cinder.volume_encryption_types.create(made, LUKS)
        if name.endswith("-limited"):
            limits = cinder.qos_specs.create(name, LIMITED)
            cinder.qos_specs.associate(limits, made.id)


def main() -> None:
    cinder, wanted = person("admin").cinder(), set(sys.argv[1].split())
    make_types(cinder, wanted)
    deadline = time.monotonic() + READY_S
    while missing := wanted - pools(cinder):
        if time.monotonic() > deadline:
            sys.exit(f"backends without a pool after {READY_S} s: {', '.join(sorted(missing))}")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
