"""`top`: a live screen of what is under way, what is parked first."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from host_agent.shared.platform.text import visible
from ledger.cli.base import PlainCommand
from ledger.cli.errors import ExitCode, usage

INTERVAL_S = 2.0
INTERVAL_MIN_S, INTERVAL_MAX_S = 0.1, 86_400.0
ROWS_MAX = 200
HOME, CLEAR_BELOW, CLEAR_LINE = "\x1b[H", "\x1b[J", "\x1b[K"
#: A screen of its own, without a cursor; and back to what was there before.
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"

COLUMNS = ("ID", "Flow", "State", "Server", "Host", "Since", "Doing, or why not")

Operation = dict[str, Any]


class TopView(NamedTuple):
    """What one look found; `trouble`: why the service told nothing."""

    operations: list[Operation]
    hosts: list[dict[str, Any]]
    trouble: str = ""


class Top(PlainCommand):
    """Watch operations, the parked ones first, until interrupted (Ctrl-C)."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--once", action="store_true", help="print one screen and end")
        parser.add_argument(
            "--interval",
            type=_interval,
            default=INTERVAL_S,
            metavar="SECONDS",
            help=f"between two refreshes (default {INTERVAL_S:g}, at least {INTERVAL_MIN_S:g})",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        from ledger.cli.table import write_lines

        if parsed_args.once:
            write_lines(self._screen(self._look()), self.app.stdout)
            return ExitCode.OK
        if not self.app.stdout.isatty():
            raise usage("top needs a terminal.", "One screen, in a pipe: top --once")
        self._watch(parsed_args.interval)
        return ExitCode.OK

    def _watch(self, interval_s: float) -> None:
        from ledger.cli.client import ClientError
        from ledger.cli.table import painted, unescaped

        seen = self._look()  # what is wrong from the start is an error, and no screen
        terminal = unescaped(self.app.stdout)
        terminal.write(ENTER)
        try:
            while True:
                lines = painted(self._screen(seen), terminal)
                text = "\n".join(f"{line}{CLEAR_LINE}" for line in lines)
                terminal.write(HOME + text + CLEAR_BELOW)
                terminal.flush()
                time.sleep(interval_s)
                try:
                    seen = self._look()
                except ClientError as error:
                    seen = seen._replace(trouble=str(error))
        except KeyboardInterrupt:
            pass
        finally:
            terminal.write(LEAVE)
            terminal.flush()

    def _look(self) -> TopView:
        """Parked and running operations, and the hosts (which only operators may see)."""
        found: list[Operation] = []
        for state in ("parked", "running"):
            found += self.client.items("/v1/operations", "operations", ROWS_MAX, state=state)
        return TopView(found, self.client.get("/v1/hosts")["hosts"])

    def _screen(self, seen: TopView) -> Iterator[str]:
        from ledger.cli.table import now

        size = shutil.get_terminal_size()
        return screen(seen, size.columns, size.lines, now(), self.client.url)


def _interval(text: str) -> float:
    with suppress(ValueError):
        if INTERVAL_MIN_S <= (seconds := float(text)) <= INTERVAL_MAX_S:
            return seconds
    raise argparse.ArgumentTypeError(
        f"must be {INTERVAL_MIN_S:g} to {INTERVAL_MAX_S:g} seconds, not {text!r}"
    )


def screen(seen: TopView, width: int, height: int, now: datetime, url: str) -> Iterator[str]:
    """Lines for a terminal of this size: the counts, then as many operations as fit."""
    from ledger.cli.table import list_lines

    parked = [each for each in seen.operations if each["state"] == "parked"]
    running = [each for each in seen.operations if each["state"] == "running"]
    head = [*_head(seen, len(parked), len(running), now, url), ""]
    rows = [_row(each, now) for each in [*_oldest_first(parked), *_oldest_first(running)]]
    yield from (visible(line)[:width] for line in head)
    if not rows:
        yield "No operation is under way, and none is parked."
        return
    lines = list(list_lines(COLUMNS, rows, width, now))
    room = height - len(head) - 1
    if len(lines) <= room:
        yield from lines
        return
    yield from lines[: room - 1]
    yield "... more than fits here: attachment-ledger operation list"


def _head(seen: TopView, parked: int, running: int, now: datetime, url: str) -> Iterator[str]:
    from ledger.cli.servers.host import state

    many = f"{ROWS_MAX} or more" if max(parked, running) >= ROWS_MAX else None
    counts = f"{many or parked} parked, {many or running} running"
    yield f"{now:%H:%M:%S}Z  {counts}  {url}"
    states = [state(host) for host in seen.hosts]
    bad = [f"{h['host']} {s}" for h, s in zip(seen.hosts, states, strict=True) if s != "up"]
    yield f"hosts: {states.count('up')} up" + (f"; {', '.join(bad)}" if bad else "")
    if seen.trouble:
        yield f"as of the last answer; now: {seen.trouble}"


def _oldest_first(operations: list[Operation]) -> list[Operation]:
    return sorted(operations, key=lambda each: str(each.get("updated_at") or each["started_at"]))


def _row(operation: Operation, now: datetime) -> tuple[Any, ...]:
    from ledger.cli.operations.plan import Why, standing
    from ledger.cli.table import NamedId

    places = filter(None, (operation["host"], operation["destination"]))
    return (
        operation["operation_id"],
        operation["flow"],
        standing(operation),
        NamedId(operation["server_id"], operation.get("server_name")),
        " -> ".join(places),
        operation.get("updated_at") or operation["started_at"],
        Why(operation, now),
    )
