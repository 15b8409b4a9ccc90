"""Processes of guests, as the kernel shows them: libvirt may have lost one.

A daemon that is started without its state (/run emptied, a host's root file system put back) knows
nothing of the QEMU processes of before, which run on and write.
libvirt gives each of them its domain's UUID.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path

PROC = Path("/proc")


def runs(server_id: str, proc: Path = PROC) -> bool:
    """Whether a process was started as this guest.  Raises OSError if none can be listed."""
    wanted = (b"-uuid", server_id.encode())
    for process in proc.iterdir():
        if process.name.isdecimal():
            with suppress(OSError):  # it has ended meanwhile
                words = (process / "cmdline").read_bytes().split(b"\0")
                if wanted in pairwise(words):
                    return True
    return False
