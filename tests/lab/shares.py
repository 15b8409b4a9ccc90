"""A share that is mounted, and whose server answers nobody.

The kernel of the lab's machine may have no NFS client, and its stand-in (mount.nfs) binds a
directory, which the kernel shows as what it is.  So this is a mount of the kind that GlusterFS has:
to the kernel a FUSE server of that name, which here refuses the first request, and so all.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KIND = "fuse.glusterfs"
REQUEST_BYTES_MAX = 1 << 16
#: As <linux/fuse.h> has fuse_in_header, its beginning, and fuse_out_header.
_REQUEST, _ANSWER = struct.Struct("=IIQ"), struct.Struct("=IiQ")


def can_mount() -> bool:
    """Whether the kernel has FUSE."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError:
        return False
    return True


@contextmanager
def mounted(source: str, at: Path) -> Iterator[None]:
    """Mount it there; whoever touches it is refused at once."""
    at.mkdir()
    server = os.open("/dev/fuse", os.O_RDWR)
    try:
        _mount(source, at, f"fd={server},rootmode=40000,user_id=0,group_id=0")
        try:
            _, _, number = _REQUEST.unpack_from(os.read(server, REQUEST_BYTES_MAX))
            os.write(server, _ANSWER.pack(_ANSWER.size, -errno.EIO, number))
            yield
        finally:
            _check(ctypes.CDLL(None, use_errno=True).umount2(os.fsencode(at), 0), at)
    finally:
        os.close(server)
        at.rmdir()


def _mount(source: str, at: Path, options: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    names = (source.encode(), os.fsencode(at), KIND.encode())
    _check(libc.mount(*names, 0, options.encode()), at)


def _check(returned: int, at: Path) -> None:
    if returned:
        raise OSError(ctypes.get_errno(), "could not be mounted or unmounted", str(at))
