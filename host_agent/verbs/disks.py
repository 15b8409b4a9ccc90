"""From a lane to a guest's disk: its name, its bus, and how it is opened."""

from __future__ import annotations

import re
from typing import Any

from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.ports import Disk
from host_agent.verbs.context import final

_BUSES = {"vd": "virtio", "xvd": "virtio", "sd": "scsi", "hd": "scsi"}
#: The keys of Lane.disk that are not of the source.
_MANNERS = frozenset({"format", "discard", "readonly", "iotune", "blockio"})


def bus_of(device_name: str) -> str:
    """Virtio for vdX and xvdX, scsi for sdX and hdX (IDE cannot be plugged)."""
    found = re.fullmatch(r"(vd|xvd|sd|hd)[a-z]{1,2}", device_name)
    if found is None:
        raise final(
            "bad_device_name", f"Device name {device_name!r} is none of vdX, xvdX, sdX, hdX."
        )
    return _BUSES[found[1]]


def disk_for(lane: Lane, connected: dict[str, Any], device_name: str | None = None) -> Disk:
    """The guest's disk for a lane's volume, connected as `connected` says (see Lane.disk)."""
    name = device_name or lane.device_name or ""
    return Disk(
        serial=lane.disk_serial,
        source={key: value for key, value in connected.items() if key not in _MANNERS},
        device_name=name,
        bus=bus_of(name),
        format=connected["format"],
        shareable=lane.multiattach,
        discard=connected["discard"],
        readonly=connected["readonly"] or lane.access_mode == "ro",
        iotune=connected.get("iotune", {}),  # an agent of 0.2.0 does not say
        blockio=connected.get("blockio", {}),
        boot_index=lane.boot_index,
    )
