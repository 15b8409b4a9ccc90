"""`--wait`: wait until an operation or a look ends, or needs an operator, and show its progress.

Progress goes to stderr: on a terminal one line that changes, else a plain line when
something changed and at least every PLAIN_LINE_S.  A ledger that is away for a while
(a restart, a failover) is waited for as well: the operation goes on meanwhile.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any, Self

from host_agent.shared.text import one_line
from ledger.cli import plan
from ledger.cli.base import on_terminal
from ledger.cli.client import ApiError, Client, ClientError, UnreachableError

TIMEOUT_S = 600.0
TERMINAL_LINE_S = 1.0
PLAIN_LINE_S = 10.0
OUTAGE_PAUSE_S = 1.0
GRACE_S = 10.0  # above the time the service was asked to hold the request
SERVICE_AWAY = frozenset({502, 503, 504})


def wait(client: Client, operation_id: str, timeout_s: float) -> dict[str, Any]:
    """The operation once it is over, or as it is when time is up.

    Raises ClientError; for an outage only when it lasts to the end.
    """

    def look(hold_s: float) -> dict[str, Any]:
        return _look(client, operation_id, hold_s)

    return until(look, plan.is_over, plan.progress, timeout_s)


def until(
    look: Callable[[float], dict[str, Any]],
    is_over: Callable[[dict[str, Any]], bool],
    words: Callable[[dict[str, Any]], str],
    timeout_s: float,
) -> dict[str, Any]:
    """What `look` finds once it is over, or when time is up; meanwhile it is told in `words`.

    `look` may take as many seconds as it is given.  Raises as `wait`.
    """
    end = time.monotonic() + timeout_s
    with Progress() as progress:
        while True:
            left_s = max(0.0, end - time.monotonic())
            try:
                found = look(min(left_s, progress.interval_s))
            except ClientError as error:
                if left_s <= 0 or not _is_outage(error):
                    raise
                progress.say(f"{error} Trying again.")
                time.sleep(min(left_s, OUTAGE_PAUSE_S))
                continue
            if is_over(found) or left_s <= 0:
                return found
            progress.say(words(found))


def _look(client: Client, operation_id: str, hold_s: float) -> dict[str, Any]:
    path = f"/v1/operations/{operation_id}"
    operation: dict[str, Any] = client.get(path, timeout_s=hold_s + GRACE_S, wait_s=f"{hold_s:.1f}")
    return operation


def _is_outage(error: ClientError) -> bool:
    away = isinstance(error, ApiError) and error.status in SERVICE_AWAY
    return away or isinstance(error, UnreachableError)


class Progress:
    """Shows progress on stderr."""

    def __init__(self) -> None:
        self._terminal = on_terminal()
        self.interval_s = TERMINAL_LINE_S if self._terminal else PLAIN_LINE_S
        self._said = ""
        self._said_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal and self._said:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def say(self, text: str) -> None:
        now, text = time.monotonic(), one_line(text)
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        elif text != self._said or now - self._said_at >= PLAIN_LINE_S:
            print(text, file=sys.stderr, flush=True)
            self._said_at = now
        self._said = text


def add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait", action="store_true", help="until the operation ends or needs an operator"
    )
    add_timeout(parser)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help=f"how long to wait at most (default {TIMEOUT_S:g})",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds
