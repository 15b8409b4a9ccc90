"""What systemd is for a program of `Type=notify` with `WatchdogSec=`: a socket that it tells."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Longer than a program needs to be ready.
WAIT_S = 60.0


@dataclass(frozen=True)
class Supervisor:
    environ: dict[str, str]
    line: socket.socket

    def hears(self, state: str) -> None:
        """Waits for it; others may come before.  Raises TimeoutError."""
        while self.line.recv(100).decode() != state:
            pass


@contextmanager
def supervisor(path: Path, *, watchdog_s: float) -> Iterator[Supervisor]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(path))
        line.settimeout(WAIT_S)
        period_us = str(int(watchdog_s * 1_000_000))
        yield Supervisor({"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": period_us}, line)
