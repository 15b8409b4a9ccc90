"""The pass over ids: the ledger's attachments and volumes beside Cinder's.

Both sides are walked in the order of ids, a page of each in memory.  What the walk shows to
differ is only suspected: its volume is asked for by itself, with all its attachments, and read
anew of the ledger, and only that is judged (`volume`).  A look at a part walks nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeVar

from handlers.drift import join, judge
from handlers.drift.classes import DriftClass
from handlers.drift.join import CinderListing
from handlers.drift.rows import (
    UNKNOWN,
    AttachmentRow,
    CinderAttachment,
    CinderVolume,
    Party,
    Unknown,
)
from handlers.drift.rows import Row as Joined
from host_agent.shared.cinder.lists import ListedAttachment, ListedVolume
from ledger.reconcile.cases import JudgedCase, Suspicions, batched
from ledger.reconcile.cinder_side import MARKERS, CinderSide, NotBelievedError, cinder_volume
from ledger.reconcile.reads import LedgerReads
from ledger.reconcile.state import LookProgress
from projections.base import Row

A = TypeVar("A")
B = TypeVar("B")

#: Ids that are compared at once.
CHUNK = 200
#: Sizes of volumes that a look keeps in memory, some ten megabytes; of more they are unknown.
SIZES_MAX = 100_000


class Reread(NamedTuple):
    """The rows of a volume that was asked for by itself; `whole`: what is not there is nowhere."""

    rows: list[Joined]
    whole: bool


@dataclass(frozen=True, kw_only=True)
class IdPass:
    """One look's pass.  Its phases yield the last ids that are done, so that it can go on there.

    `sizes`: filled with how large the volumes are that servers have, in GiB, for the pass over
    hosts.  Who goes on with a look elsewhere does not know those that were listed before.
    """

    reads: LedgerReads
    cinder: CinderSide
    cases: Suspicions
    state: LookProgress
    sizes: dict[str, int]

    # --- phases -------------------------------------------------------------------------------

    def attachments(self) -> Iterator[list[str]]:
        pages = self.reads.paged("attachments", "attachment_id", self.state.last)
        ours = ((row["attachment_id"], row) for row in chain.from_iterable(pages))
        listed = chain.from_iterable(self.cinder.attachments(self.state.after))
        for chunk in batched(merged(ours, ((row.id, row) for row in listed)), CHUNK):
            owners = self._owners((stored, theirs) for _, stored, theirs in chunk)
            rows = [
                row
                for _, stored, theirs in chunk
                if (row := _attachment(stored, theirs, owners)) is not None
            ]
            self._judge(rows)
            self.state.compare(rows)
            self.state.done += len(rows)
            yield _markers(chunk)

    def volumes(self) -> Iterator[list[str]]:
        pages = self.reads.paged("volumes", "volume_id", self.state.last)
        ours = ((row["volume_id"], row) for row in chain.from_iterable(pages))
        listed = chain.from_iterable(self.cinder.volumes(self.state.after))
        for chunk in batched(merged(ours, ((row.id, row) for row in listed)), CHUNK):
            facts = self._facts(chunk)
            for id_, stored, volume in chunk:
                if stored is not None and volume is not None:
                    self._size(id_, volume.size_gb)
            rows = [_volume(facts[id_], listed) for id_, _, listed in chunk if id_ in facts]
            self._judge([*rows, *self._attached(chunk, facts)])
            self.state.compare(rows)
            self.state.done += len(rows)
            yield _markers(chunk)

    def parts(self) -> Iterator[list[str]]:
        """The volumes of a part of the cloud, each asked for by itself."""
        for page in self.reads.scoped("scoped_volumes", "volume_id", self.state.last):
            for stored in page:
                rows = self.volume(stored["volume_id"]).rows
                self._keep([(each, row) for row in rows for each in judge.drifting(row)])
                self.state.compare(rows)
                self.state.done += 1
                yield [stored["volume_id"]]

    def _size(self, volume_id: str, size_gb: int | None) -> None:
        if size_gb is not None and len(self.sizes) < SIZES_MAX:
            self.sizes[volume_id] = size_gb

    def _facts(self, chunk: Sequence[tuple[str, Row | None, object]]) -> dict[str, Row]:
        """By volume; of those that no server has they are asked for now."""
        facts = {id_: ours for id_, ours, _ in chunk if ours is not None}
        if others := [id_ for id_, ours, _ in chunk if ours is None]:
            facts |= self.reads.volume_facts(others)
        return facts

    def _attached(
        self, chunk: Sequence[tuple[str, object, ListedVolume | None]], facts: Mapping[str, Row]
    ) -> list[Joined]:
        """What the list of volumes tells of attachments: their hosts and the names of their
        disks, where these are not ours.  All else of them their own list has told.
        """
        attached = [
            row
            for id_, _, volume in chunk
            if volume is not None
            for row in volume.attached
            if not _is_there(facts.get(id_), row)
        ]
        if not attached:
            return []
        stored = self.reads.attachments(row.id for row in attached)
        shared = {volume.id for _, _, volume in chunk if volume is not None and volume.multiattach}
        owners = self._owners(((stored.get(row.id), row) for row in attached), facts, shared)
        rows = (_attachment(stored.get(row.id), row, owners) for row in attached)
        return [row for row in rows if row is not None]

    def _owners(
        self,
        pairs: Iterable[tuple[Row | None, ListedAttachment | None]],
        facts: Mapping[str, Row] | None = None,
        shared: Container[str] = (),
    ) -> Owners:
        """Of what the ledger does not know: few, and most often none.  Whether a volume is for
        several (`shared`) the list of attachments does not tell; that of volumes does, and has all
        that are attached.
        """
        asked = [theirs for stored, theirs in pairs if theirs and stored is None]
        servers = self.reads.servers(each.server_id for each in asked) if asked else {}
        strange = [
            each.volume_id
            for each in asked
            if each.server_id not in servers and (facts is not None or each.status != "attached")
        ]
        if facts is None:
            facts = self.reads.volume_facts(strange) if strange else {}
        return Owners(servers, _taken(facts, (id_ for id_ in strange if id_ not in shared)))

    # --- what is suspected --------------------------------------------------------------------

    def _judge(self, rows: Iterable[Joined]) -> None:
        found = [(each, row) for row in rows for each in judge.drifting(row)]
        by_ledger = [case for case in found if Party.CINDER not in case[0].parties]
        suspected = self._unexplained([case for case in found if Party.CINDER in case[0].parties])
        for volume_id in sorted({str(row.about.volume_id) for _, row in suspected}):
            why = [(each, row) for each, row in suspected if row.about.volume_id == volume_id]
            if all(self.state.hopeless(each) for each, _ in why):
                for each, _ in why:
                    self.state.pass_over(each)
                continue
            again = self.volume(volume_id).rows
            self._count_unlisted(why, again)
            self._keep([(each, row) for row in again for each in judge.drifting(row)])
        self._keep(by_ledger)

    def volume(self, volume_id: str) -> Reread:
        """A volume and its attachments, as both say now; nothing, while it is being made."""
        stored = {r["attachment_id"]: r for r in self.reads.of_volume(volume_id)}
        shown = self.cinder.shown(volume_id, (i for i, r in stored.items() if not r["legacy"]))
        if shown.why_unknown is not None:
            self.state.not_judged(volume_id, shown.why_unknown)
        self._size(volume_id, shown.size_gb)
        if shown.made_for is not None and self.reads.one("making", mark=shown.made_for):
            self.state.in_flight += 1
            return Reread([], whole=False)
        facts = self.reads.volume_facts([volume_id])[volume_id]
        made: Row = {}
        if shown.made_for is not None and not (facts["had"] or facts["mappings"]):
            made = self.reads.made_for(shown.made_for)
        servers = self.reads.servers(
            each.server_id for each in shown.attachments.values() if isinstance(each, CinderListing)
        )
        owners = Owners(servers, {} if shown.multiattach else _taken({volume_id: facts}))
        rows: list[Joined] = [
            join.volume(
                volume_id,
                shown.volume,
                mappings=facts["mappings"],
                had=facts["had"],
                server_id=made.get("server_id", facts["server_id"]),
                projects=facts["projects"],
                made_by=made.get("operation_id"),
            )
        ]
        for id_ in sorted(stored.keys() | shown.attachments.keys()):
            row = _joined(stored.get(id_), shown.attachments.get(id_, UNKNOWN), owners)
            if row is not None:
                rows.append(row)
        return Reread(rows, whole=shown.why_unknown is None)

    def _count_unlisted(
        self, why: Sequence[tuple[DriftClass, Joined]], again: Sequence[Joined]
    ) -> None:
        """A list that lacks what Cinder has, and had before the look began, is not whole."""
        lacking = {row.id for _, row in why if getattr(row, "cinder", UNKNOWN) is None}
        there = {row.id for row in again if isinstance(getattr(row, "cinder", None), _SHOWN)}
        self.state.unlisted += len(lacking & there)
        if self.state.unlisted > judge.limit(self.state.total):
            raise NotBelievedError(
                f"Cinder's lists lack {self.state.unlisted} things that it has when it is asked "
                "for them: they are cut. Look at the proxy or load balancer before Cinder."
            )

    # --- what is kept -------------------------------------------------------------------------

    def _unexplained(
        self, cases: Sequence[tuple[DriftClass, Joined]]
    ) -> list[tuple[DriftClass, Joined]]:
        moves = self.reads.moves([row.about for _, row in cases])
        left = [
            case
            for case, move in zip(cases, moves, strict=True)
            if not move.explains(self.state.position)
        ]
        self.state.in_flight += len(cases) - len(left)
        return left

    def _keep(self, cases: Sequence[tuple[DriftClass, Joined]]) -> None:
        position = self.state.position
        seen = [
            JudgedCase.of(each, row, position=position) for each, row in self._unexplained(cases)
        ]
        self.state.count(self.cases.put(seen))


_SHOWN = (CinderAttachment, CinderVolume)


@dataclass(frozen=True)
class Owners:
    """`servers`: of ours, by id.  `taken`: by volume, the server of ours that has it alone."""

    servers: Mapping[str, Row]
    taken: Mapping[str, str]


def _taken(facts: Mapping[str, Row], of: Iterable[str] | None = None) -> dict[str, str]:
    some = facts.keys() if of is None else of
    return {id_: facts[id_]["server_id"] for id_ in some if id_ in facts and facts[id_]["mappings"]}


def _is_there(facts: Row | None, listed: ListedAttachment) -> bool:
    """Whether the ledger has it, on that host and by that name, as far as both tell them."""
    for id_, host, device in facts["held"] if facts else ():
        if id_ == listed.id:
            named = None in (listed.mountpoint, device) or listed.mountpoint == device
            return named and listed.host in (None, host)
    return False


def _attachment(
    stored: Row | None, listed: ListedAttachment | None, owners: Owners
) -> AttachmentRow | None:
    if listed is None:
        return _joined(stored, None, owners)
    shown = join.shown_as(listed.status, listed.host, listed.mode, listed.mountpoint)
    theirs = CinderListing(
        id=listed.id, volume_id=listed.volume_id, server_id=listed.server_id, shown=shown
    )
    return _joined(stored, theirs, owners)


def _joined(
    stored: Row | None, listed: CinderListing | Unknown | None, owners: Owners
) -> AttachmentRow | None:
    """None: neither has it, or it is Cinder's side of what the ledger has by the old calls."""
    if stored is not None:
        server, mapped, device = stored["server"], stored["mapped"], stored["device"]
        return join.attachment(stored, listed, server=server, mapped=mapped, device=device)
    if not isinstance(listed, CinderListing):
        return None
    server = owners.servers.get(listed.server_id or "")
    if server is None:
        taken_by = owners.taken.get(listed.volume_id)
        return join.attachment(None, listed, server=None, mapped=False, taken_by=taken_by)
    if listed.volume_id in server["legacy"]:
        return None
    return join.attachment(None, listed, server=server["server"], mapped=False)


def _volume(facts: Row, listed: ListedVolume | None) -> Joined:
    """Attachments that are not in use are not in the list: what the ledger has of them will do."""
    shown = None if listed is None else cinder_volume(listed, len(listed.attached) or facts["open"])
    return join.volume(
        facts["volume_id"],
        shown,
        mappings=facts["mappings"],
        had=facts["had"],
        server_id=facts["server_id"],
        projects=facts["projects"],
    )


def merged(
    ours: Iterator[tuple[str, A]], theirs: Iterator[tuple[str, B]]
) -> Iterator[tuple[str, A | None, B | None]]:
    """Two lists in the order of ids as one: of each id what ours has, and theirs."""
    mine, other = next(ours, None), next(theirs, None)
    while mine is not None or other is not None:
        if other is None or (mine is not None and mine[0] < other[0]):
            assert mine is not None, "one of them is there"
            yield mine[0], mine[1], None
            mine = next(ours, None)
        elif mine is None or other[0] < mine[0]:
            yield other[0], None, other[1]
            other = next(theirs, None)
        else:
            yield mine[0], mine[1], other[1]
            mine, other = next(ours, None), next(theirs, None)


def _markers(chunk: Sequence[tuple[str, object, object]]) -> list[str]:
    """Ids to go on behind, the last one last; the others are such as Cinder has."""
    theirs = [id_ for id_, _, listed in chunk[:-1] if listed is not None]
    return [*theirs[1 - MARKERS :], chunk[-1][0]]
