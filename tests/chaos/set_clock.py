"""A program of ours under a wall clock that a file sets.

`python -m tests.chaos.set_clock FILE MODULE ...`

The file has by how many seconds it is ahead of the machine's; it may change at any time.  Only
`time.time` is set, which all of ours read; what measures durations is as it was.
"""

from __future__ import annotations

import faulthandler
import runpy
import signal
import sys
import time
from pathlib import Path

_true = time.time
_, _file, _module, *_arguments = sys.argv


def _wrong() -> float:
    try:
        return _true() + float(Path(_file).read_text())
    except FileNotFoundError:
        return _true()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # shows in the log what its threads do
    time.time = _wrong
    sys.argv = [_module, *_arguments]
    runpy.run_module(_module, run_name="__main__", alter_sys=True)
