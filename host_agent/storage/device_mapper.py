"""The state of a multipath map in the kernel's device mapper, read by one ioctl.

sysfs has only the state of a path's SCSI device, which stays "running" while the storage answers
that there is no such LUN.  dm-mpath knows the failed paths, from failed requests and from
multipathd's checkers.  The ioctl neither sends a request to a path nor waits for one (DM_NOFLUSH);
it needs root.  The structures are those of linux/dm-ioctl.h.
"""

from __future__ import annotations

import fcntl
import re
import struct
from contextlib import suppress

_CONTROL = "/dev/mapper/control"
_DM_TABLE_STATUS = 0xC138FD0C
_DM_NOFLUSH = 1 << 11
#: struct dm_ioctl: version, data_size, data_start, target_count, open_count, flags, event_nr,
#: padding, dev, name, uuid, data.
_HEAD = struct.Struct("=10IQ128s129s7s")
_VERSION = (4, 0, 0)
#: struct dm_target_spec, before the text of each target.
_TARGET = struct.Struct("=QQiI16s")
_ANSWER_BYTES = 16384  # a path takes some 30
#: A path in dm-mpath's status: its device, and A (active) or F (failed).
_PATH = re.compile(rb"\b\d+:\d+ ([AF])\b")


def status(uuid: str) -> bytes | None:
    """The status of the device with this UUID; None: there is none, or no permission."""
    size, begin = _ANSWER_BYTES, _HEAD.size
    answer = bytearray(size)
    head = (*_VERSION, size, begin, 0, 0, _DM_NOFLUSH, 0, 0, 0, b"", uuid.encode(), b"")
    _HEAD.pack_into(answer, 0, *head)
    with suppress(OSError), open(_CONTROL, "rb", buffering=0) as control:  # noqa: PTH123
        fcntl.ioctl(control, _DM_TABLE_STATUS, answer)
        text = _HEAD.unpack_from(answer)[4] + _TARGET.size
        return bytes(answer[text : answer.index(0, text)])
    return None


def has_path(told: bytes | None) -> bool:
    """Whether a map with this status has a working path; True for an unknown status."""
    return told is None or b"A" in _PATH.findall(told)
