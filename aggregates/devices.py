"""Devices of a server: the names that it has given away, and the disks that its host shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

#: Letters a to zz; libvirt's PCI topology ends long before.
DEVICES_MAX = 26 + 26 * 26


@dataclass(frozen=True)
class Device:
    """A device name given to a volume of this server; `volume_id` None: the root is detached."""

    bdm_id: str
    volume_id: str | None
    device_name: str
    serial: str | None  # the id by which the guest knows the disk


class SeenDisks(NamedTuple):
    """The disks of a guest as its host shows them: their targets, and serials that are ids."""

    devices: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()


NO_DISKS = SeenDisks()
