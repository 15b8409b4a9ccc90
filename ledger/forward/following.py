"""Follows the log for a target, from where that was the last time.

Theory of operation (decision 0115).  How far a consumer is stands in the row of its long work
(ledger.upkeep.long_work), in the database that has the log.  It moves once the target has taken a
batch: a crash sends some again, and nothing is passed over.  A database that is put back from a
backup takes that row with it, so what followed the backup is told anew.  One process at a time
follows for a consumer; another one takes over when its connection has ended.

Refused requests are beside the log, for a day.  They are read some seconds late: a process writes
them a little after it has noted them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from uuid import UUID

import structlog

from host_agent.shared.contract.backoff import Backoff
from ledger.forward.forms import Form
from ledger.forward.targets import AwayError, ForwardTarget, Item, RefusedError, TooMuchError
from ledger.forward.told import ToldItem, of_event, of_refusal
from ledger.native.log.schemas_events import EventShown
from ledger.upkeep.long_work import Checkmark
from projections.reads.queries import Queries, read_pool

BATCH_EVENTS = 200
#: How often it is looked for events when there are none.
POLL_S = 1.0
#: So long after a request was refused it has been written.
REFUSALS_LATE_S = 10.0
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0

_log = structlog.get_logger(__name__)


class ForwardError(Exception):
    """It cannot go on; the message says why, `hint` what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class ConsumerPosition(NamedTuple):
    """How far a consumer is: in the log, and among the refused requests."""

    position: int
    refused_at: str | None = None
    refused_id: str = ""

    @classmethod
    def of(cls, step: Checkmark) -> ConsumerPosition:
        return cls(step.done, *((step.kept or {}).get("refused") or ()))

    def checkmark(self, head: int) -> Checkmark:
        kept = {"refused": [self.refused_at, self.refused_id]} if self.refused_at else None
        return Checkmark(self.position, max(head, self.position), kept)


class FeedReader:
    """Reads what follows, for a thread that has no event loop."""

    def __init__(self, queries: Queries, runner: asyncio.Runner) -> None:
        self._queries, self._runner = queries, runner
        self._look_at = float("-inf")

    @classmethod
    @contextmanager
    def opened(cls, dsn: str) -> Iterator[FeedReader]:
        with asyncio.Runner() as runner:
            pool = read_pool(dsn)
            runner.run(pool.open())
            try:
                yield cls(Queries(pool), runner)
            finally:
                runner.run(pool.close())

    def end(self) -> tuple[int, UUID | None]:
        """Where the log ends, and which one it is; None: it has no event yet."""
        row = self._runner.run(self._queries.checkpoint())
        return row["position"], row["log"] and UUID(row["log"])

    def events(self, log: UUID, place: ConsumerPosition) -> list[ToldItem]:
        """Raises DetachedError rather than passing some over."""
        asked = self._queries.events(after=place.position, limit=BATCH_EVENTS)
        rows = self._runner.run(asked)
        return [
            of_event(log, EventShown.model_validate(row).model_dump(mode="json")) for row in rows
        ]

    def refusals(self, log: UUID, place: ConsumerPosition) -> list[ToldItem]:
        """None most of the time: their table is read as a whole, so every REFUSALS_LATE_S."""
        if time.monotonic() < self._look_at:
            return []
        asked = self._queries.refusals_after(
            place.refused_at, place.refused_id, REFUSALS_LATE_S, BATCH_EVENTS
        )
        rows = self._runner.run(asked)
        if len(rows) < BATCH_EVENTS:
            self._look_at = time.monotonic() + REFUSALS_LATE_S
        return [of_refusal(log, row) for row in rows]


def forward(
    reader: FeedReader,
    begun: Checkmark,
    form: Form,
    target: ForwardTarget,
    *,
    after: int | None = None,
) -> Generator[Checkmark]:
    """Work without an end, for `long_work.run`.  `after`: a position to go on behind, in place of
    where it was.

    Raises ForwardError; DetachedError where events are in an archive's files only.
    """
    place = ConsumerPosition.of(begun)
    if after is not None:
        place = place._replace(position=after)
    while True:
        head, log = reader.end()
        if place.position > head:
            raise _beyond(place.position, head, given=place.position == after)
        items = [] if log is None else _following(reader, log, place, form)
        if items:
            _deliver(target, items)
            place = _behind(place, [told for told, _ in items])
        yield place.checkmark(head)
        if not items:
            time.sleep(POLL_S)


def _following(reader: FeedReader, log: UUID, place: ConsumerPosition, form: Form) -> list[Item]:
    told = [*reader.refusals(log, place), *reader.events(log, place)]
    return [(each, form(log, each)) for each in told]


def _behind(place: ConsumerPosition, told: list[ToldItem]) -> ConsumerPosition:
    for each in told:
        if each.position is None:
            place = place._replace(refused_at=each.at.isoformat(), refused_id=each.thing_id)
        else:
            place = place._replace(position=each.position)
    return place


def _deliver(target: ForwardTarget, items: list[Item]) -> None:
    """As often as it takes, while the target is away; by halves, where all is too much for it.

    Raises ForwardError if it refuses.
    """
    backoff = Backoff(RETRY_FIRST_S, RETRY_MAX_S, random.random)
    while True:
        try:
            return target.send(items)
        except AwayError as error:
            wait_s = backoff.next_s()
            _log.warning("forward_target_away", why=str(error), again_in_s=round(wait_s, 1))
            time.sleep(wait_s)
        except RefusedError as error:
            half = len(items) // 2
            if not (half and isinstance(error, TooMuchError)):
                raise _refused(error, items) from None
            _deliver(target, items[:half])
            items = items[half:]


def _refused(error: RefusedError, items: list[Item]) -> ForwardError:
    positions = [told.position for told, _ in items if told.position is not None]
    where = f"events {positions[0]} to {positions[-1]}" if positions else "refused requests"
    skip = f" Or leave them out: --after {positions[-1]}." if positions else ""
    return ForwardError(
        f"the target does not take {where}: {error}",
        f"Mend it; the same command sends them again.{skip}",
    )


def _beyond(position: int, head: int, *, given: bool) -> ForwardError:
    if given:
        return ForwardError(
            f"the log ends at position {head}, before --after {position}",
            "The newest events: attachment-ledger event list.",
        )
    return ForwardError(
        f"the log ends at position {head}, and {position} was told already: it was restored from "
        "an older backup, or is another one",
        "Events of topic Host.Restored say at which position the backup ended. Go on behind a "
        "position: --after POSITION.",
    )
