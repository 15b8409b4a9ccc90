"""Long work at a terminal: a line that changes, and Ctrl-C stops it where it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ledger.cli.base import note
from ledger.cli.errors import CliError, ExitCode
from ledger.cli.operations.waiting import ProgressLine as Line
from ledger.upkeep.long_work import BusyError, Checkmark, Work, WorkProgress, run


@contextmanager
def refuse_busy() -> Iterator[None]:
    """Raises CliError if another process does the work."""
    try:
        yield
    except BusyError as error:
        raise CliError(
            f"{error}.", ExitCode.REFUSED, "How far it is: attachment-ledger projection list"
        ) from None


def run_shown(dsn: str, name: str, work: Work) -> Checkmark:
    """Do long work, its progress on stderr; the same command goes on after a stop.

    Raises CliError if another process does it already.
    """
    last: list[WorkProgress] = []

    def watch(progress: WorkProgress) -> None:
        last[:] = [progress]
        line.say_at_times(str(progress))

    try:
        with refuse_busy(), Line() as line:
            return run(dsn, name, work, watch)
    except KeyboardInterrupt:
        at = f" after {last[0].done:,} of {last[0].total:,} events" if last else ""
        note(f"{name} is stopped{at}. The same command goes on there.")
        raise
