"""Tells systemd the state of this process, if systemd asks for it (sd_notify(3))."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def tell(state: str) -> None:
    """`READY=1`, `STOPPING=1`, or `WATCHDOG=1`.  Nothing, if nobody asked, or nobody hears."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.connect("\0" + address[1:] if address[0] == "@" else address)
        line.send(state.encode())


def watchdog_s() -> float | None:
    """How often `WATCHDOG=1` has to come: twice in the time that the unit's WatchdogSec says."""
    asked = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    period_us = os.environ.get("WATCHDOG_USEC", "")
    return int(period_us) / 2_000_000 if asked and period_us.isdigit() else None
