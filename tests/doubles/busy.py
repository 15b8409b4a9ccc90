"""A process with a thread that calls and returns all the time, for SIGUSR2.

`untold`: what it is at cannot be told.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading

from host_agent.shared.platform.process import answer_signals


def _deep(calls: int) -> None:
    """So many that Python gets memory for their frames, and gives it back."""
    if calls:
        _deep(calls - 1)


def _work() -> None:
    while True:
        _deep(400)


def _state() -> list[str]:
    if "untold" in sys.argv:
        raise RuntimeError
    return ["Open calls: 0"]


async def _until_stopped() -> None:
    """The loop is woken by each signal, as the service's is, whatever thread gets it."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    sys.stdout.write("busy\n")
    sys.stdout.flush()
    await stopped.wait()


if __name__ == "__main__":
    answer_signals(_state)
    threading.Thread(target=_work, daemon=True).start()
    asyncio.run(_until_stopped())
