"""The pass over hosts: what the ledger has on each beside what the host shows of itself.

First all hosts of the look are asked for a survey, some at a time, and waited for; then each is
compared by the survey that came since the look began.  A host that has not answered is unknown,
and so is what it could not look at.

Of hosts that the look does not ask, their newest surveys count, with their age, for what they show
and not for what they do not show: guests of servers to which nothing has happened since.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from aggregates.base import About
from handlers.drift import join, judge
from handlers.drift.classes import BY_NAME, DriftClass
from handlers.drift.join import Hosted
from handlers.drift.judge import Life, Sight
from handlers.drift.rows import (
    AttachmentRow,
    Key,
    Party,
    ServerRow,
    StorageRow,
    Subject,
    UnlabelledRow,
    key_of,
)
from handlers.drift.rows import Row as Joined
from host_agent.shared.contract.survey import CONNECTIONS, GUESTS, SECRETS, STORAGE, Survey
from ledger.reconcile.cases import JudgedCase, Suspicions
from ledger.reconcile.reads import LedgerReads, about, is_uuid, uuids
from ledger.reconcile.state import LookProgress
from projections.base import Row
from projections.reads.surveys import BlockingSurveyReads, Standing

#: How long the hosts that are asked together may take to answer, and how often it is looked.
ANSWER_S, LOOK_AGAIN_S = 30.0, 0.2
#: A survey that is older than this tells nothing.
AGE_MAX_S = 3600.0


@dataclass(kw_only=True)
class HostPass:
    """One look's pass.  `wait` sleeps, until the service ends."""

    reads: LedgerReads
    surveys: BlockingSurveyReads
    cases: Suspicions
    state: LookProgress
    sizes: Mapping[str, int]  # as IdPass has filled it
    silent_after_s: float
    wait: Callable[[float], None]
    clock: Callable[[], float] = time.monotonic
    #: Where guests are shown whose servers are not there, by server; who was asked and could look;
    #: the lives of these, and of those whose older surveys count.
    _shown_elsewhere: dict[str, tuple[tuple[str, str], ...]] | None = field(
        default=None, init=False
    )
    _seeing: frozenset[str] = field(default=frozenset(), init=False)
    _lives: dict[str, Life] = field(default_factory=dict, init=False)
    #: As of which position hosts are judged: the first at which one was asked for its survey.
    _since: int = field(default=0, init=False)

    # --- phases -------------------------------------------------------------------------------

    def ask(self) -> Iterator[list[str]]:
        """Ask for surveys, and wait for those who can answer."""
        for page in self.reads.scoped("hosts", "host", self.state.last):
            names = [row["host"] for row in page]
            asked = self.surveys.want(names, silent_after_s=self.silent_after_s)
            until = self.clock() + ANSWER_S
            while self._unanswered(asked) and self.clock() < until:
                self.wait(LOOK_AGAIN_S)
            yield [names[-1]]

    def _unanswered(self, asked: dict[str, str]) -> bool:
        found = self.surveys.standings(list(asked), silent_after_s=self.silent_after_s)
        return any(each.wanted == asked[each.host] for each in found)

    def compare(self) -> Iterator[list[str]]:
        for page in self.reads.scoped("hosts", "host", self.state.last):
            names = [row["host"] for row in page]
            if self._shown_elsewhere is None:
                self._find_shown_elsewhere()
            for standing in self._standings(names):
                self._compare(standing)
                self.state.done += 1
                yield [standing.host]

    def _standings(self, names: Sequence[str] | None) -> list[Standing]:
        return self.surveys.standings(
            names, silent_after_s=self.silent_after_s, age_max_s=AGE_MAX_S
        )

    def _find_shown_elsewhere(self) -> None:
        """Guests that are shown where their servers are not: few, unless something is wrong."""
        known = [each for each in self._standings(None) if each.why_unknown is None]
        fresh = {each.host: each for each in known if self._why_unknown(each) is None}
        asked = (each.asked_position for each in fresh.values() if each.asked_position is not None)
        self._since = min([self.state.position, *asked])
        self._lives = {each.host: _life(each, asked=each.host in fresh) for each in known}
        seeing = self.reads.rows("seeing", hosts=[each.host for each in known])
        telling = [row["host"] for row in seeing]
        self._seeing = frozenset(telling) & fresh.keys()
        self.state.heard = sorted(self._seeing)
        at = self.state.scope.get("host")
        shown = self.reads.rows("powers", hosts=telling, host=at)
        found: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for row in self._still(shown, {each.host: each.asked_position or 0 for each in known}):
            found[row["server_id"]].append((row["host"], row["power"]))
        self._shown_elsewhere = {
            server_id: tuple(sorted(where)) for server_id, where in found.items()
        }

    def _still(self, shown: Sequence[Row], asked_at: Mapping[str, int]) -> Iterator[Row]:
        """Those to which nothing has happened since, of what older surveys show."""
        older = [row for row in shown if row["host"] not in self._seeing]
        moves = self.reads.moves([About(server_id=row["server_id"]) for row in older])
        yield from (row for row in shown if row["host"] in self._seeing)
        for row, move in zip(older, moves, strict=True):
            if not move.explains(asked_at[row["host"]]):
                yield row

    def _why_unknown(self, standing: Standing) -> str | None:
        if standing.why_unknown is not None:
            return standing.why_unknown
        if (standing.arrived_position or 0) < self.state.position:
            return "the host was asked and has not answered in time"
        return None

    # --- one host -----------------------------------------------------------------------------

    def _compare(self, standing: Standing) -> None:
        host, why = standing.host, self._why_unknown(standing)
        survey = self._survey(standing) if why is None else None
        if survey is None:
            why = why or "its survey is in a form that this version does not know"
        else:
            self._lives[host] = _life(standing, asked=True)  # it may have answered since
        if survey is not None and survey.blind:
            why = "could not look: " + "; ".join(survey.why_blind)
        if why is not None:
            self.state.unknown[host] = why
        here = self._hosted(host, survey)
        rows = [row for row in self._rows(here) if self._in_scope(row.about)]
        self._keep(rows)
        self._miss(rows, here)
        self.state.compare(row for row in rows if not isinstance(row, AttachmentRow))

    def _survey(self, standing: Standing) -> Survey | None:
        assert standing.token is not None, "it is known"
        return self.surveys.survey(standing.host, standing.token)

    def _hosted(self, host: str, survey: Survey | None) -> Hosted:
        assert self._shown_elsewhere is not None, "they are looked for first"
        shown = [guest.server_id for guest in survey.guests] if survey else []
        recorded = [each.attachment_id for each in survey.connections] if survey else []
        shown += [row["server_id"] for row in self.reads.rows("told_by", host=host)]
        servers = self.reads.rows(
            "servers_of_host", host=host, shown=uuids(shown), alone=not self._others_are_asked
        )
        here = [row["server_id"] for row in servers if row["here"]]
        return Hosted(
            host=host,
            survey=survey,
            servers=servers,
            mappings=self.reads.rows("mappings_of", ids=here),
            attachments=self.reads.rows("attachments_of_host", host=host, recorded=uuids(recorded)),
            shown_elsewhere=self._shown_elsewhere,
            other_hosts=self._other_hosts(host, servers),
            sizes=self.sizes,
        )

    def _other_hosts(self, host: str, servers: Sequence[Row]) -> dict[tuple[str, str], str | None]:
        """What other hosts show that are to have servers, too, or alone."""
        assert self._shown_elsewhere is not None, "they are looked for first"
        found: dict[tuple[str, str], str | None] = {}
        for row in servers:
            shown = dict(self._shown_elsewhere.get(row["server_id"], ()))
            others = {row["host"], row["resize_source"]} - {host, None}
            for other in others & (self._seeing | shown.keys()):
                found[other, row["server_id"]] = shown.get(other)
        return found

    def _rows(self, here: Hosted) -> Iterator[Joined]:
        """All that is to be judged by this host: of attachments only what it says of them."""
        yield from join.of_host(here)
        others = {None} if self._others_are_asked else {stored["host"] for stored in here.servers}
        for stored in here.servers:
            if stored["host"] in others - {here.host}:
                yield join.server(here, stored)

    @property
    def _others_are_asked(self) -> bool:
        """So that each server is judged where it is to be."""
        return "host" not in self.state.scope

    def _in_scope(self, of: About) -> bool:
        """Of a server or volume alone its own."""
        scope = self.state.scope
        return scope.get("server") in {None, of.server_id} and (
            scope.get("volume") in {None, of.volume_id}
        )

    # --- what is kept -------------------------------------------------------------------------

    def _keep(self, rows: Sequence[Joined]) -> None:
        drifting = [
            (each, row)
            for row in rows
            for each in judge.drifting(row)
            if not isinstance(row, AttachmentRow) or Party.HOST in each.parties
            if _is_named(row)
        ]
        moves = self.reads.moves([row.about for _, row in drifting])
        seen = [
            JudgedCase.of(each, row, self._since, self._lives)
            for (each, row), move in zip(drifting, moves, strict=True)
            if not move.explains(self._since)
        ]
        self.state.in_flight += len(drifting) - len(seen)
        self.state.count(self.cases.put(seen))

    def _miss(self, rows: Sequence[Joined], here: Hosted) -> None:
        """Findings that this host, and nobody else, can say to be over."""
        servers = [row["server_id"] for row in here.servers]
        open_ = [
            row
            for row in self.reads.rows(
                "unseen_on", host=here.host, servers=servers, look_id=self.state.look_id
            )
            if self._in_scope(about(row)) and over(row, rows, here)
        ]
        moves = self.reads.moves([about(row) for row in open_])
        gone = [
            row["finding_id"]
            for row, move in zip(open_, moves, strict=True)
            if not move.explains(self._since)
        ]
        if gone:
            heard = self._seeing | {here.host}
            sight = Sight(look_id=self.state.look_id, position=self._since, heard=heard)
            self.cases.miss(gone, sight)


def _life(standing: Standing, *, asked: bool) -> Life:
    """Of a host's survey; one that this look has asked for has no age."""
    age_s = 0.0 if asked else round(standing.age_s or 0.0, 1)
    return {"boot_id": standing.boot_id, "epoch": standing.epoch, "age_s": age_s}


def _is_named(row: Joined) -> bool:
    """By ids: what hosts tell may be anything."""
    of = row.about
    ids = (of.server_id, of.volume_id, of.attachment_id)
    return all(id_ is None or is_uuid(id_) for id_ in ids)


#: By which part of a survey a subject is seen, or seen not to be.
_PARTS = {
    Subject.SERVER: GUESTS,
    Subject.DISK: GUESTS,
    Subject.ATTACHMENT: CONNECTIONS,
    Subject.CONNECTION: CONNECTIONS,
}


def over(finding: Row, rows: Sequence[Joined], here: Hosted) -> bool:
    """Whether a host's rows show that an open finding, which they do not show, is over.

    Its row is there and is no case; or there is no row, where this host would have it: of its
    connections and storage, of its servers' disks, and of what is on no host any more.
    """
    drift_class = BY_NAME[finding["drift_class"]]
    if Party.HOST not in drift_class.parties:
        return False
    if drift_class.row is ServerRow and not here.sees(GUESTS):
        return False
    key = Key(
        subject=Subject(finding["subject"]),
        id=finding["key"],
        host=_host_of_key(finding),
    )
    row = next((each for each in rows if key_of(each) == key), None)
    if row is not None:
        return drift_class in judge.sound(row)
    return _would_have(finding, drift_class, here)


def _would_have(finding: Row, drift_class: DriftClass, here: Hosted) -> bool:
    subject = Subject(finding["subject"])
    if drift_class.row is StorageRow:
        part = SECRETS if finding["key"].startswith("secret/") else STORAGE
        return finding["host"] == here.host and here.sees(part)
    if not here.sees(_PARTS[subject]):
        return False
    guest = here.guests.get(finding["server_id"] or "")
    if drift_class.row is UnlabelledRow and guest is not None and guest.unlabelled is None:
        return False
    if subject in {Subject.CONNECTION, Subject.ATTACHMENT}:
        return bool(finding["host"] == here.host)
    elsewhere = finding["server_host"] not in {None, here.host}
    return not elsewhere and (drift_class.row is not ServerRow or finding["server_host"] is None)


def _host_of_key(finding: Row) -> str | None:
    of_a_host = Subject(finding["subject"]) in {Subject.CONNECTION, Subject.STORAGE}
    return finding["host"] if of_a_host else None
