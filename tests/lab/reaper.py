"""Run a command, and bury whatever it leaves in the background when that dies.

The status is the command's.  Else PID 1 has to do it, which in a container may look only every
two seconds, or never; and libvirtd takes a guest for running until its process is gone altogether.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


def main() -> int:
    told, tell = os.pipe()
    if os.fork():
        os.close(tell)
        status = os.read(told, 1)
        return status[0] if status else 1
    os.setsid()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    command = os.fork()
    if command == 0:
        os.execvp(sys.argv[1], sys.argv[1:])
    _let_go_of_all_but(tell)
    return _bury(command, tell)


def _let_go_of_all_but(kept: int) -> None:
    """Nobody waits for the end of what this process merely inherited: output, locks."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _bury(command: int, tell: int) -> int:
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return 0
        if pid == command:
            os.write(tell, bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
            os.close(tell)


if __name__ == "__main__":
    sys.exit(main())
