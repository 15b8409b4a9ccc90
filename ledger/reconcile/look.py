"""A look: one comparison of ledger, Cinder and hosts, and its findings.

It is long work (ledger.upkeep.long_work): one process does it at a time and reports its progress;
another process continues it, at once if the first one ended.  A stopped look waits until it is
resumed; the next look that begins ends it.  Its phases are a table, in order; each stores its
progress by ids.

Theory of operation.  A look is judged as of the position of its first event.  It waits until the
projections have reached that.  Later events, and claims since, explain differences (`reads.Move`).
The differences are stored beside the log until everything has been read (`cases`); then classes
with too many new cases are suppressed, and the others become findings.  At the end the look reads
again the subject of each open finding that it did not see, and closes the finding if the difference
is gone.  If Cinder's lists cannot be trusted, the look has no result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import structlog
from eventsourcing.persistence import PersistenceError

from aggregates.base import Actor, EventContext
from aggregates.look import Look, LookState
from handlers.drift import judge
from handlers.drift.classes import BY_NAME
from handlers.drift.judge import Sight
from handlers.drift.rows import Key, Party, Subject, key_of
from host_agent.shared.contract.ports import PortError
from ledger.log.unit import AggregateStore, Unit, run_optimistically
from ledger.reconcile.cases import Suspicions
from ledger.reconcile.cinder_side import (
    PATIENCE_S,
    CinderSide,
    Lists,
    NotBelievedError,
    StoppedError,
)
from ledger.reconcile.hosts import HostPass
from ledger.reconcile.ids import IdPass
from ledger.reconcile.reads import PROJECTIONS, LedgerReads, about
from ledger.reconcile.state import LookProgress
from ledger.upkeep.long_work import Checkmark, Work
from projections.base import Row
from projections.database_connections import LONG_ANSWER_S, DbConnection
from projections.reads.database_trouble import is_away
from projections.reads.surveys import BlockingSurveyReads
from projections.running.tables import prepare

#: What the work is called, of the whole cloud and of a part: a look at a part does not wait for
#: one at the whole.
WHOLE, PART = "look", "look at a part"
#: Attachments that Cinder may be asked for, to see whether it shows us all projects.
CANARIES = 5
#: How long a look waits for the projections to come to its beginning.
PROJECTED_S, PROJECTED_AGAIN_S = 60.0, 0.02
_log = structlog.get_logger(__name__)
#: Of a question, what the look's first event and its state keep.
_ASKED = ("scope", "why", "believe", "reason")
_BY_IDS = [Subject.ATTACHMENT.value, Subject.VOLUME.value]


class BehindError(Exception):
    """The projections do not come to where the look began; it is to be gone on with later."""


@dataclass(frozen=True, kw_only=True)
class LookSources:
    """Whom a look asks.  `share`: of one API worker of Cinder's; `stop`: the service ends, or
    somebody has stopped the look.

    `confirmed` is called with each finding that a look has confirmed, once that is stored.
    """

    dsn: str
    store: AggregateStore
    lists: Lists
    share: float
    silent_after_s: float
    stop: threading.Event
    confirmed: Callable[[str], object] = lambda _: None


def look(sides: LookSources, *, whole: bool) -> Work:
    """The long work of the look that was asked for first; none, if none was.

    It raises StoppedError and BehindError, and psycopg.Error if the database does not answer.
    """

    def work(begun: Checkmark) -> Generator[Checkmark]:
        with _reading(sides.dsn) as connection:
            state = _began(sides, connection, begun, whole=whole)
            if state is not None:
                yield from _Look(sides, connection, state).steps()

    return work


@contextmanager
def _reading(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with DbConnection.connect(
        dsn, autocommit=True, application_name="attachment-ledger look"
    ) as connection:
        connection.answer_s = LONG_ANSWER_S
        prepare(connection)
        yield connection


def _began(
    sides: LookSources, connection: psycopg.Connection[Any], begun: Checkmark, *, whole: bool
) -> LookProgress | None:
    """The look that is under way; else the one that was asked for first, which begins now."""
    reads = LedgerReads(connection, {})
    questions = reads.rows("asked", whole=whole)
    if begun.kept is not None:
        last = LookProgress.from_json(begun.kept)
        standing = sides.store.load(Look, UUID(last.look_id)).state  # the log's word
        if standing is LookState.UNDER_WAY:
            return last
        if standing is LookState.STOPPED and not questions:
            raise StoppedError
        _Look(sides, connection, last).give_way()
    for asked in questions:
        look_id, context = asked["look_id"], context_of(asked["context"])

        def begin(unit: Unit) -> None:
            started = unit.get(Look, look_id)  # noqa: B023 - it is called here and now
            if started.state is None:
                scope = {name: asked[name] for name in _ASKED}  # noqa: B023
                started.record(Look.LookBegun, **scope)
            unit.save(context)  # noqa: B023

        run_optimistically(sides.store, begin)
        return LookProgress(
            look_id=look_id,
            position=reads.one("began", look_id=look_id),
            context=asked["context"],
            **{name: asked[name] for name in _ASKED},
            total=sum(reads.rows("totals")[0].values()) if whole else 0,
        )
    return None


def context_of(data: Mapping[str, Any]) -> EventContext:
    """Who asked, as it is kept (dataclasses.asdict of an EventContext)."""
    return EventContext(**{**data, "actor": Actor.of(data["actor"])})


class _Look:
    def __init__(
        self, sides: LookSources, connection: psycopg.Connection[Any], state: LookProgress
    ) -> None:
        self._sides, self._state = sides, state
        self._reads = LedgerReads(connection, state.scope)
        self._context = context_of(state.context)
        self._cases = Suspicions(
            self._reads, sides.store, state.look_id, self._context, sides.confirmed
        )
        patience_s = 0.0 if state.scope else PATIENCE_S
        self._cinder = CinderSide(sides.lists, sides.share, sides.stop, patience_s=patience_s)
        sizes: dict[str, int] = {}
        ids = IdPass(
            sizes=sizes, reads=self._reads, cinder=self._cinder, cases=self._cases, state=state
        )
        hosts = HostPass(
            reads=self._reads,
            surveys=BlockingSurveyReads(connection),
            cases=self._cases,
            state=state,
            sizes=sizes,
            silent_after_s=sides.silent_after_s,
            wait=self._cinder.wait,
        )
        self._ids = ids
        walks: dict[str, Callable[[], Iterator[list[str]]]] = (
            {"parts": ids.parts}
            if state.scope
            else {"attachments": ids.attachments, "volumes": ids.volumes}
        )
        self._phases: dict[str, Callable[[], Iterator[list[str]]]] = {
            "begin": self._begin,
            **walks,
            "ask": hosts.ask,
            "hosts": hosts.compare,
            "believe": self._believe,
            "unseen": self._unseen,
        }

    def steps(self) -> Generator[Checkmark]:
        """All phases, from where it is; it stops after each part of one."""
        yield self._checkmark()
        self._reads.rows("begun", look_id=self._state.look_id)
        try:
            yield from self._all_phases()
        except (NotBelievedError, PortError) as error:
            self._end("void", trouble=str(error))
        except (StoppedError, BehindError, PersistenceError):
            raise  # it can be gone on with
        except Exception as error:  # it would fail again, and keep others away
            if is_away(error):
                raise
            _log.exception("look_failed", look_id=self._state.look_id)
            self._end("void", trouble=f"{type(error).__name__}: the service's log says more")
        else:
            braked = self._suppressed()
            self._end("completed", braked=braked, examples=self._cases.examples(braked))
        self._cases.drop()

    def _all_phases(self) -> Iterator[Checkmark]:
        state, names = self._state, list(self._phases)
        for name in names[names.index(state.phase) :]:
            if name != state.phase:
                state.phase, state.after = name, []
            for after in self._phases[name]():
                state.after = after
                yield self._checkmark()
                self._cinder.wait(0)

    def _checkmark(self) -> Checkmark:
        state = self._state
        state.total = max(state.total, state.done)
        return Checkmark(state.done, state.total, state.to_json())

    # --- phases -------------------------------------------------------------------------------

    def _begin(self) -> Iterator[list[str]]:
        """The ledger has to be where the look begins, and Cinder to be one that can be believed."""
        until = time.monotonic() + PROJECTED_S
        names = list(PROJECTIONS)
        while self._reads.one("projected", names=names) < self._state.position:
            if time.monotonic() > until:
                raise BehindError(f"projections are behind position {self._state.position}")
            self._cinder.wait(PROJECTED_AGAIN_S)
        self._state.open_ = {row["drift_class"]: row["number"] for row in self._reads.rows("open")}
        own = self._cinder.own_project()
        found = self._reads.rows("canaries", own=own, limit=CANARIES)
        canaries = [row for row in found if row["others"]] or found
        self._cinder.check_canaries((row["attachment_id"], row["volume_id"]) for row in canaries)
        yield []

    def _believe(self) -> Iterator[list[str]]:
        state = self._state
        heard = frozenset(state.heard)
        for last, opened, explained in self._cases.believe(self._suppressed(), heard, state.last):
            state.open(opened)
            state.in_flight += explained
            yield [last]

    def _suppressed(self) -> dict[str, int]:
        return self._state.suppressed(self._cases.opening())

    def _unseen(self) -> Iterator[list[str]]:
        """Findings that nobody has seen: each is looked for by itself.  Hosts' are over by now, but
        for those of hosts that were handed back or forgotten: nobody will tell of them any more.
        """
        asked = {"look_id": self._state.look_id, "subjects": _BY_IDS}
        for page in self._reads.scoped("unseen", "finding_id", self._state.last, **asked):
            self._miss([row for row in page if self._is_over(row)])
            yield [page[-1]["finding_id"]]
        if not self._state.scope:
            now_s = self._reads.one("now")
            for page in self._reads.paged("ignored", "finding_id", None):
                self._cases.unignore([row["finding_id"] for row in page], now_s)

    def _is_over(self, finding: Row) -> bool:
        drift_class = BY_NAME[finding["drift_class"]]
        if Party.HOST in drift_class.parties:
            return bool(finding["host_gone"])
        if finding["volume_id"] is None:
            return False
        key = Key(subject=Subject(finding["subject"]), id=finding["key"])
        found = self._ids.volume(finding["volume_id"])
        row = next((each for each in found.rows if key_of(each) == key), None)
        if row is not None:
            return drift_class in judge.sound(row)
        return found.whole or (bool(found.rows) and drift_class.parties == (Party.LEDGER,))

    def _miss(self, findings: list[Row]) -> None:
        moves = self._reads.moves([about(row) for row in findings])
        gone = [
            row["finding_id"]
            for row, move in zip(findings, moves, strict=True)
            if not move.explains(self._state.position)
        ]
        heard = frozenset(row["host"] for row in findings if row["host_gone"])
        sight = Sight(look_id=self._state.look_id, position=self._state.position, heard=heard)
        self._cases.miss(gone, sight)

    # --- the end ------------------------------------------------------------------------------

    def give_way(self) -> None:
        """It was stopped, and another one is to begin; or it is over."""
        self._end("stopped", trouble="another look began before this one was resumed")
        self._cases.drop()

    def _end(self, outcome: str, **more: Any) -> None:
        state = self._state

        def change(unit: Unit) -> None:
            ended = unit.get(Look, state.look_id)
            if ended.state is not None and not ended.is_over:
                ended.record(
                    Look.LookEnded,
                    outcome=outcome,
                    compared=state.compared,
                    found=state.opened,
                    unknown=state.unknown,
                    in_flight=state.in_flight,
                    **more,
                )
            unit.save(self._context)

        run_optimistically(self._sides.store, change)
