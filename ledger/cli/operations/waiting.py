"""`--wait`: wait until an operation or a look ends, or needs an operator, and show its progress.

Progress goes to stderr: on a terminal one line that changes, else a plain line when
something changed and at least every PLAIN_LINE_S.  A ledger that is away for a while
(a restart, a failover) is waited for as well: the operation goes on meanwhile.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any, Self

from host_agent.shared.platform.text import one_line
from ledger.cli.base import on_terminal
from ledger.cli.client import Client, ClientError, ServiceError, UnreachableError
from ledger.cli.operations import plan
from ledger.cli.table import now, span

TIMEOUT_S = 600.0
TERMINAL_LINE_S = 1.0
PLAIN_LINE_S = 10.0
OUTAGE_PAUSE_S = 1.0
#: The service holds no request for an operation that is not there yet, so it is asked again.
NOT_YET_PAUSE_S = 1.0
GRACE_S = 10.0  # above the time the service was asked to hold the request
SERVICE_AWAY = frozenset({502, 503, 504})


def wait(client: Client, operation_id: str, timeout_s: float) -> dict[str, Any]:
    """The operation once it is over, or as it is when time is up.

    Raises ClientError; for an outage only when it lasts to the end.
    """

    def look(hold_s: float) -> dict[str, Any]:
        return _look(client, operation_id, hold_s)

    return until(look, plan.is_over, Telling().words, timeout_s, ended=plan.ended)


def begun(client: Client, operation_id: str, timeout_s: float) -> bool:
    """Whether an operation that comes after what is in its way has begun, or does so in time.

    Raises as `wait`.
    """

    def look(hold_s: float) -> dict[str, Any]:
        try:
            return _look(client, operation_id, 0.0)
        except ServiceError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        time.sleep(min(hold_s, NOT_YET_PAUSE_S))
        return {}

    words = "accepted; what is at work on the server comes first"
    return bool(until(look, bool, lambda _: words, timeout_s))


def until(
    look: Callable[[float], dict[str, Any]],
    is_over: Callable[[dict[str, Any]], bool],
    words: Callable[[dict[str, Any]], str],
    timeout_s: float,
    *,
    ended: Callable[[dict[str, Any]], Iterator[str]] = lambda _: iter(()),
) -> dict[str, Any]:
    """What `look` finds once it is over, or when time is up; meanwhile it is told in `words`.

    `look` may take as many seconds as it is given; `ended`: what stays told, a line each.
    Raises as `wait`.
    """
    end = time.monotonic() + timeout_s
    with ProgressLine() as progress:
        while True:
            left_s = max(0.0, end - time.monotonic())
            try:
                found = look(min(left_s, progress.interval_s))
            except ClientError as error:
                if left_s <= 0 or not is_outage(error):
                    raise
                progress.say(f"{error} Trying again.")
                time.sleep(min(left_s, OUTAGE_PAUSE_S))
                continue
            progress.keep(ended(found))
            if is_over(found) or left_s <= 0:
                return found
            progress.say(words(found))


def _look(client: Client, operation_id: str, hold_s: float) -> dict[str, Any]:
    path = f"/v1/operations/{operation_id}"
    operation: dict[str, Any] = client.get(path, timeout_s=hold_s + GRACE_S, wait_s=f"{hold_s:.1f}")
    return operation


def is_outage(error: ClientError) -> bool:
    """Of the ledger, or behind a proxy of what is there: it may be back soon."""
    away = isinstance(error, ServiceError) and error.status in SERVICE_AWAY
    return away or isinstance(error, UnreachableError)


class Telling:
    """Words for an operation that is looked at again and again: the pace of its copies, too."""

    def __init__(self) -> None:
        self._copied: tuple[float, int] | None = None  # when it was first seen, and how far

    def words(self, operation: dict[str, Any]) -> str:
        left_s = self.left_s(operation, time.monotonic())
        eta = "" if left_s is None else f", {span(left_s)} left"
        if on_terminal():  # where the line is written anew each second
            return f"{operation['flow']}: {plan.doing(operation, now())}{eta}"
        return plan.progress(operation) + eta

    def left_s(self, operation: dict[str, Any], at: float) -> float | None:
        """How long its copies will take at the pace so far; None: it cannot be told."""
        done = sum(known["done_bytes"] for known in operation["progress"])
        total = sum(known["total_bytes"] for known in operation["progress"])
        if not total:
            self._copied = None
            return None
        if self._copied is None or done < self._copied[1]:
            self._copied = (at, done)
        began, first = self._copied
        return (total - done) * (at - began) / (done - first) if done > first else None


class ProgressLine:
    """Shows progress on stderr."""

    def __init__(self) -> None:
        self._kept: set[str] = set()
        self._terminal = on_terminal()
        self.interval_s = TERMINAL_LINE_S if self._terminal else PLAIN_LINE_S
        self._shown = ""
        self._shown_at = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal and self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def keep(self, lines: Iterable[str]) -> None:
        """Tell what is not told yet, in lines that stay."""
        for line in lines:
            if line not in self._kept:
                self._kept.add(line)
                sys.stderr.write("\r\x1b[K" * self._terminal + one_line(line) + "\n")
        sys.stderr.flush()

    def say_at_times(self, text: str) -> None:
        """Of what changes all the time, one in each interval."""
        if time.monotonic() - self._shown_at >= self.interval_s:
            self.say(text)

    def say(self, text: str) -> None:
        now, text = time.monotonic(), one_line(text)
        if self._terminal:  # a line that wraps could not be written anew
            text = text[: shutil.get_terminal_size().columns - 1]
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        elif text != self._shown or now - self._shown_at >= PLAIN_LINE_S:
            print(text, file=sys.stderr, flush=True)
        else:
            return
        self._shown, self._shown_at = text, now


def add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait", action="store_true", help="wait until the operation ends or needs an operator"
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
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text!r}")
    return seconds
