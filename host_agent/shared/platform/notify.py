"""Notifies systemd of the process's state (sd_notify(3))."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def tell(state: str) -> None:
    """Send `READY=1`, `STOPPING=1`, or `WATCHDOG=1`; no effect without systemd's socket."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.connect("\0" + address[1:] if address[0] == "@" else address)
        line.send(state.encode())


def watchdog_s() -> float | None:
    """The interval of `WATCHDOG=1`: half of the unit's WatchdogSec; None without a watchdog."""
    asked = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    period_us = os.environ.get("WATCHDOG_USEC", "")
    return int(period_us) / 2_000_000 if asked and period_us.isdigit() else None
