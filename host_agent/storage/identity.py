"""Checks whether a SCSI disk is still the volume that the kernel has recorded for it.

The kernel reads the identity of a disk once, when it finds the disk, and keeps the answer.  If the
storage gives the number of the LUN to another volume later, everything on the host (WWID, size,
names in /dev, the multipath map) stays that of the former volume, while every read and write goes
to the new one.  os-brick takes such a disk for the requested one (LP 1419577 and similar).  So
before a guest gets the disk, the agent reads the page that the kernel keeps (SPC-4, 7.8.5) from the
disk again, and compares both.  If the disk cannot be read, or the agent is not root, nothing
changes.  A disk to which the kernel sends nothing now is not read, because the call would wait
until it does.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_SG_IO, _FROM_DEVICE = 0x2285, -3
#: struct sg_io_hdr of linux <scsi/sg.h>.
_HEAD = struct.Struct("iiBBHIPPPIIiPBBBBHHiII0P")
_STATUS = slice(13, 19)  # its status fields: all zero if the disk has answered
_PAGE, _PAGE_BYTES = 0x83, 252
_INQUIRY = bytes((0x12, 1, _PAGE, 0, _PAGE_BYTES, 0))
_LIMIT_MS = 5000
#: Designators that are unique to the volume: EUI-64, NAA, SCSI name string.
_UNIQUE = frozenset({2, 3, 8})

#: Reads the identification page of the disk at a path; None: no answer.
Ask = Callable[[str], bytes | None]


def asked(path: str) -> bytes | None:
    """The disk's present identification page; at most 5 s for a disk that answers."""
    command, page = ctypes.create_string_buffer(_INQUIRY), ctypes.create_string_buffer(_PAGE_BYTES)
    sense, at = ctypes.create_string_buffer(32), ctypes.addressof
    buffers = (_PAGE_BYTES, at(page), at(command), at(sense), _LIMIT_MS, 0, 0, 0)
    head = bytearray(_HEAD.size)
    asked_for = (ord("S"), _FROM_DEVICE, len(_INQUIRY), len(sense), 0, *buffers)
    _HEAD.pack_into(head, 0, *asked_for, *(0,) * 9)
    with suppress(OSError):
        disk = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            fcntl.ioctl(disk, _SG_IO, head)
        finally:
            os.close(disk)
        return None if any(_HEAD.unpack(head)[_STATUS]) else page.raw
    return None


def other_volumes(path: str, root: Path = Path("/"), ask: Ask = asked) -> list[str]:
    """The disks at `path`, or below the map there, that are another volume now."""
    blocks = root / "sys/class/block"
    name = Path(os.path.realpath(root / path[1:])).name
    below = sorted(each.name for each in blocks.glob(f"{name}/slaves/*")) or [name]
    return [f"/dev/{disk}" for disk in below if _is_other(blocks / disk, f"/dev/{disk}", ask)]


def _is_other(block: Path, path: str, ask: Ask) -> bool:
    """True only if both have designators, and none in common."""
    with suppress(OSError):
        kept = {*_names((block / _KEPT).read_bytes())}
        if kept and (block / "device/state").read_text() == _WORKS:
            told = {*_names(ask(path) or b"")}
            return bool(told) and kept.isdisjoint(told)
    return False


_KEPT, _WORKS = f"device/vpd_pg{_PAGE:x}", "running\n"


def _names(page: bytes) -> Iterator[tuple[int, bytes]]:
    """The designators of the logical unit, without those of the port.  If the page was truncated,
    the last one is incomplete and left out.
    """
    end = 4 + int.from_bytes(page[2:4], "big")
    rest = page[4:end]
    while len(rest) > 4:  # noqa: PLR2004
        kind, whose, end = rest[1] & 0xF, rest[1] >> 4 & 3, 4 + rest[3]
        if kind in _UNIQUE and whose == 0 and len(rest) >= end:
            yield kind, rest[4:end]
        rest = rest[end:]
