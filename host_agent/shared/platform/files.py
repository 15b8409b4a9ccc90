"""Files that are replaced while a program runs: settings, tokens, certificates, a policy.

Only a regular file is read, whatever else is in its place for a moment.  To open a FIFO may wait
for a writer for ever; to open a device may have an effect.  A symbolic link to a file is followed,
because Kubernetes and certbot use them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def regular_file(path: str | Path) -> Iterator[Path]:
    """A path of this very file, valid during the block, even if the file is replaced meanwhile.

    Raises OSError, also if it is not a regular file.
    """
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)  # finds the file without opening it
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "It is no regular file", str(path))
        yield Path(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
