"""Processes of guests, as the kernel shows them: libvirt may have lost one.

A libvirtd that starts without its state (/run is empty, or the host's root file system was
restored) does not know the earlier QEMU processes, which continue to run and write.  libvirt gives
each of them its domain's UUID.
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
