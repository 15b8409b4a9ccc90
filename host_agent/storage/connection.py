"""Reads Cinder's connection information: its fields, and what a guest's disk needs of it.

Pure.  The information is flat, as in the answer of `attachment_update`: the
driver's own keys beside `driver_volume_type`, `access_mode`, `encrypted` and so on.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import (
    BLOCK_SIZES,
    LOGICAL,
    PHYSICAL,
    ConnectionInfo,
    PortError,
)

#: QEMU's greatest limit of a disk, in bytes or requests per second.
LIMIT_MAX = 10**15
#: The limits that Nova 34 takes from a QoS spec (nova/virt/libvirt/volume/volume.py).
LIMITS = frozenset(
    f"{side}_{unit}_sec{burst}"
    for side in ("total", "read", "write")
    for unit in ("bytes", "iops")
    for burst in ("", "_max")
) | {"size_iops_sec"}
#: The smallest and the greatest block of a virtual disk in QEMU, in bytes.
_BLOCK_MIN, _BLOCK_MAX = 512, 2 << 20

#: The keys that identify a target.  An allow-list, because any other key may be a credential.
#: Without Cinder's "volume_id", which a migration changes while the target stays.
IDENTITY_KEYS = frozenset(
    {
        "cluster_name",
        "device_path",
        "export",
        "host_nqn",
        "hosts",
        "name",
        "nqn",
        "ns_id",
        "portals",
        "ports",
        "target_iqn",
        "target_iqns",
        "target_lun",
        "target_luns",
        "target_nqn",
        "target_portal",
        "target_portals",
        "target_wwn",
        "target_wwns",
        "vol_uuid",
        "volume_nguid",
        "volume_uuid",
    }
)


def driver(info: ConnectionInfo) -> str:
    """The protocol in lower case ("rbd", "nfs", "iscsi", ...); FINAL if there is none."""
    name = info.get("driver_volume_type")
    if not isinstance(name, str) or not name:
        raise malformed("driver_volume_type")
    return name.lower()


def malformed(key: str) -> PortError:
    """Connection information without a usable `key`.  Its content is never shown."""
    return PortError(
        ErrorKind.FINAL,
        "bad_connection_info",
        f"Cinder's connection information has no usable {key!r}: look at the volume's backend.",
    )


def target_digest(info: ConnectionInfo) -> str:
    """sha256 of the target's identity: equal for equal targets, without secrets."""
    known = {key: info[key] for key in sorted(IDENTITY_KEYS & info.keys())}
    text = json.dumps([driver(info), known], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def access_mode(info: ConnectionInfo, wanted: str = "rw") -> str:
    """The guest's access mode: "ro" if the lane or Cinder says so; else "rw".

    From the connection information, as in Nova.  An attachment's `attach_mode` is no use: it is
    "null" after a create with a connector, and "ro" after any os-attach (Cinder 29).
    """
    return "ro" if "ro" in (wanted, info.get("access_mode")) else "rw"


def image_format(info: ConnectionInfo) -> str:
    """The format of the data: what the driver says (qcow2 on NFS), else raw."""
    return str(info.get("format") or "raw")


def iotune(info: ConnectionInfo) -> tuple[dict[str, int], list[str]]:
    """The disk's limits, in bytes and requests per second, by libvirt's names (`<iotune>`), and the
    names of those that are left out.

    As Nova: Cinder sends the QoS spec of the volume's type, if its consumer is the front end; other
    keys are the backend's.  An administrator wrote the values, and Cinder checks none: a guest
    starts without those that QEMU refuses, and with a total instead of what is given beside it.
    """
    specs = info.get("qos_specs")
    texts = specs.items() if isinstance(specs, dict) else ()
    given = {n: text for n, v in texts if n in LIMITS and (text := str(v).strip()) != "0"}
    read = {n: int(v) for n, v in given.items() if re.fullmatch("[0-9]{1,16}", v)}
    sound = {name: limit for name, limit in read.items() if 0 < limit <= LIMIT_MAX}
    taken: dict[str, int] = {}
    for unit in ("bytes_sec", "iops_sec"):
        for side in ("total",) if f"total_{unit}" in sound else ("read", "write"):
            name, burst = f"{side}_{unit}", f"{side}_{unit}_max"
            if name in sound:
                taken[name] = sound[name]
                if sound.get(burst, 0) >= sound[name]:
                    taken[burst] = sound[burst]
    if "size_iops_sec" in sound and any("iops" in name for name in taken):
        taken["size_iops_sec"] = sound["size_iops_sec"]
    return taken, sorted(given.keys() - taken)


def blockio(info: ConnectionInfo) -> dict[str, int]:
    """The block sizes that the backend wants a guest to see, in bytes (`<blockio>`).

    FINAL for one that no disk can have: what is on the volume depends on it, so Nova fails, too.
    """
    wanted = {name: info[name] for name in BLOCK_SIZES if info.get(name) is not None}
    for name, value in wanted.items():
        size = int(value) if re.fullmatch("[0-9]{1,7}", str(value)) else 0
        if not _BLOCK_MIN <= size <= _BLOCK_MAX or size & (size - 1):
            raise malformed(name)
        wanted[name] = size
    if wanted.get(LOGICAL, 0) > wanted.get(PHYSICAL, _BLOCK_MAX):  # QEMU refuses that
        raise malformed(LOGICAL)
    return wanted


def network_source(
    info: ConnectionInfo, *, user: str | None = None, secret_uuid: str | None = None
) -> dict[str, Any]:
    """A Disk's source for a protocol that QEMU speaks itself (RBD).

    The secret is named by its libvirt uuid.  Cinder's user and uuid win; `user` and `secret_uuid`
    are this host's settings, for backends that send none.
    """
    name, hosts, ports = info.get("name"), info.get("hosts"), info.get("ports")
    if not isinstance(name, str) or "/" not in name:
        raise malformed("name")
    if not isinstance(hosts, list) or not isinstance(ports, list) or len(hosts) != len(ports):
        raise malformed("hosts")
    auth = None
    if info.get("auth_enabled"):
        auth = {
            "user": info.get("auth_username") or user,
            "secret_uuid": info.get("secret_uuid") or secret_uuid,
        }
        if not auth["secret_uuid"]:
            raise PortError(
                ErrorKind.FINAL,
                "no_ceph_secret",
                "The backend wants cephx and neither Cinder nor [brick] rbd_secret_uuid names "
                "the libvirt secret: define one (virsh secret-define) and set it.",
            )
    pairs = [[str(h).strip("[]"), str(p)] for h, p in zip(hosts, ports, strict=True)]
    return {"type": "network", "protocol": "rbd", "name": name, "hosts": pairs, "auth": auth}


def device_path(source: dict[str, Any]) -> str:
    """A source in short, as in reports: the path, or pool/image."""
    return str(source["name"] if source["type"] == "network" else source["path"])
