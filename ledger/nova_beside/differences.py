"""What differs beside a Nova that is watched becomes findings, as what a look of ours finds does.

Theory of operation
-------------------
* The observer's lists are what `survey` compares, so its classes are told of them, each look
  (handlers.drift.beside_nova).  Only what is questionable costs Nova a request more.
* Where there is too much to ask for by its id, looks go round: each thing is asked for in two in a
  row.
* What two looks have said alike, a minute apart, is found by the first and confirmed by the second.
  So what somebody was just at is never recorded.  One process looks; another begins anew.
* What a host of Nova's sends of itself counts for one look: if it was made after all that the look
  before has read.  So what two looks say alike is never what a host had not shown yet.  Of a
  host that sends nothing, nothing is said.
* Ours is left out: Nova says 404 of it, and our own look tells of it.
* A finding is over as soon as a look that could see it does not: one that rests on hosts' surveys,
  if these hosts were heard; or are the ledger's by now, unless its server is still Nova's.
* Nothing of ours mends any: what Nova or Cinder is to be told is said (beside_words).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import psycopg
import structlog
from psycopg.rows import dict_row

import sql
from aggregates.base import About, EventContext
from aggregates.finding import Finding, FindingState
from handlers.drift import judge
from handlers.drift.beside_nova import Difference, confirmed, found, tells, tells_disk
from handlers.drift.classes import BY_NAME, DriftClass, subject_of
from handlers.drift.judge import Life, Sight, Suspicion
from handlers.drift.rows import DiskRow, Key, StorageRow, UnlabelledRow
from handlers.drift.seen import Cloud, SeenServer
from host_agent.shared.contract.survey import GUESTS, SECRETS, STORAGE, Part, Survey
from ledger.log.unit import AggregateStore, Unit, run_optimistically
from ledger.nova_beside import one_host
from ledger.nova_beside.reads import OF_HOST_MAX, CloudReader
from ledger.reconcile.cases import BATCH, batched
from projections.reads.surveys import sent_since

#: How long a state has to last that passes by itself, as `survey --stuck` begins with.
STUCK = timedelta(minutes=15)
#: How many differences of one look become findings, the worst first; of the others the log tells.
FINDINGS_MAX = 1_000
_SETTLED = {FindingState.CONFIRMED, FindingState.IGNORED}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Round:
    """What one look saw, as of a position of the log; `at`: by the monotonic clock.

    `ended`: when all was read, by the database's clock.  `lives`: of the hosts that it heard.
    """

    look_id: str
    position: int
    at: float
    ended: datetime
    seen: list[Difference]
    lives: Mapping[str, Life]

    def sight(self, *, apart: bool = True) -> Sight:
        return Sight(
            look_id=self.look_id,
            position=self.position,
            apart=apart,
            heard=frozenset(self.lives),
            lives=self.lives,
        )


class Differences:
    """Of all looks of one process.  Raises what the reader, the store and psycopg raise."""

    def __init__(self, store: AggregateStore) -> None:
        self._store = store
        self._before: _Round | None = None
        self._strange: set[str] = set()  # of which the log has told

    def hosts(self, connection: psycopg.Connection[Any]) -> dict[str, Survey]:
        """What hosts of Nova's have made of themselves since the look before had read all."""
        return sent_since(connection, self._before.ended) if self._before else {}

    def _known(self, sent: Mapping[str, Survey], reader: CloudReader) -> dict[str, Survey]:
        """Without hosts that have another name at Nova: all their guests would be elsewhere."""
        guests = {host for host, each in sent.items() if each.guests}
        strange = guests - one_host.hosts(reader) if guests else set()
        if strange - self._strange:
            _log.warning("sent_by_no_host_of_novas", hosts=sorted(strange)[:OF_HOST_MAX])
        self._strange |= strange
        return {host: each for host, each in sent.items() if host not in strange}

    def see(
        self,
        connection: psycopg.Connection[Any],
        reader: CloudReader,
        cloud: Cloud,
        look_id: str,
        context: EventContext,
    ) -> None:
        """What this look makes of findings.  `cloud`: what is Nova's alone (`theirs`)."""
        cloud = reader.sure(replace(cloud, hosts=self._known(cloud.hosts, reader)))
        row = connection.execute(sql.query("observed", "now")).fetchone()
        assert row is not None, "the log has a head"
        seen = [each for each in found(cloud, STUCK) if each.kind.name in BY_NAME]
        this = _Round(
            look_id=look_id,
            position=row[0],
            at=time.monotonic(),
            ended=row[1],
            seen=seen,
            lives={host: _life(each) for host, each in cloud.hosts.items()},
        )
        before = self._before
        if before is not None and this.at - before.at < judge.APART_S:
            return
        self._before = this
        reader.go_round()
        cursor = connection.cursor(row_factory=dict_row)
        open_ = cursor.execute(sql.query("observed", "differing")).fetchall()
        here = {judge.finding_id(case.drift_class, case.key): case for case in map(_case, seen)}
        gone = [row for row in open_ if row["theirs"] and row["finding_id"] not in here]
        own = frozenset(row[0] for row in connection.execute(sql.query("observed", "own_hosts")))
        self._end(gone, cloud, this, own, context)
        if before is not None:
            both = [_case(each) for each in confirmed(before.seen, seen)]
            self._find(both, open_, (before, this), context)

    def _find(
        self,
        cases: Sequence[Suspicion],
        open_: Sequence[dict[str, Any]],
        rounds: tuple[_Round, _Round],
        context: EventContext,
    ) -> None:
        said = {row["finding_id"]: row["differs"] for row in open_ if row["state"] in _SETTLED}
        ours = {row["finding_id"] for row in open_ if not row["theirs"]}  # our own look tells of it
        ids = {judge.finding_id(each.drift_class, each.key): each for each in cases}
        new = [
            (id_, case)
            for id_, case in ids.items()
            if id_ not in ours and said.get(id_) != case.differs
        ]
        told = _few(new)
        if len(new) > len(told):
            _log.warning("differences_not_told", number=len(new) - len(told))
        first, second = (each.sight(apart=nth > 0) for nth, each in enumerate(rounds))
        for batch in batched(told, BATCH):

            def change(unit: Unit) -> None:
                for id_, case in batch:  # noqa: B023 - it is called here and now
                    finding = unit.get(Finding, id_)
                    judge.see_case(finding, case, first)
                    judge.see_case(finding, case, second)
                unit.save(context)

            run_optimistically(self._store, change)

    def _end(
        self,
        rows: Sequence[dict[str, Any]],
        cloud: Cloud,
        this: _Round,
        own: frozenset[str],
        context: EventContext,
    ) -> None:
        sight = this.sight()
        names = ("server_id", "volume_id", "host")
        gone = []
        for row in rows:
            about = About(**{name: row[name] for name in names})
            drift_class = BY_NAME[row["drift_class"]]
            of_disk = drift_class.row in {DiskRow, UnlabelledRow}
            if tells(cloud, about) and (
                not of_disk or tells_disk(cloud, drift_class, about, STUCK)
            ):
                stays = isinstance(cloud.servers.get(about.server_id or ""), SeenServer)
                gone.append((row["finding_id"], _part(drift_class), () if stays else own))
        for batch in batched(gone, BATCH):

            def change(unit: Unit) -> None:
                for id_, part, told in batch:  # noqa: B023 - it is called here and now
                    heard = {host for host in cloud.hosts if cloud.sees(host, part)}.union(told)
                    judge.miss(unit.get(Finding, id_), replace(sight, heard=frozenset(heard)))
                unit.save(context)

            run_optimistically(self._store, change)


def _life(survey: Survey) -> Life:
    return {"boot_id": survey.boot_id, "epoch": survey.epoch, "age_s": 0.0}


def _few(new: Sequence[tuple[str, Suspicion]]) -> list[tuple[str, Suspicion]]:
    """As many as one look tells, the first ones."""
    of_hosts: Counter[str] = Counter()
    told = []
    for id_, case in new:
        if all(of_hosts[host] < OF_HOST_MAX for host in case.hosts):
            of_hosts.update(case.hosts)
            told.append((id_, case))
    return told[:FINDINGS_MAX]


def _part(drift_class: DriftClass) -> Part:
    """The part of hosts' surveys in which a difference of the class would be seen."""
    if drift_class.row is not StorageRow:
        return GUESTS
    return SECRETS if drift_class.name == "secret_left" else STORAGE


def theirs(cloud: Cloud, ours: frozenset[str]) -> Cloud:
    """Without the servers that are ours, their guests and attachments, and the volumes of these."""
    kept = {id_: each for id_, each in cloud.attachments.items() if each.server_id not in ours}
    held = {each.volume_id for id_, each in cloud.attachments.items() if id_ not in kept}
    for server in cloud.servers.values():
        if isinstance(server, SeenServer) and server.id in ours:
            held.update(server.volumes)
    return replace(
        cloud,
        servers={id_: each for id_, each in cloud.servers.items() if id_ not in ours},
        volumes={id_: each for id_, each in cloud.volumes.items() if id_ not in held},
        attachments={id_: each for id_, each in kept.items() if each.volume_id not in held},
        hosts={host: _without(each, ours) for host, each in cloud.hosts.items()},
    )


def _without(survey: Survey, ours: frozenset[str]) -> Survey:
    return replace(survey, guests=tuple(g for g in survey.guests if g.server_id not in ours))


def _case(each: Difference) -> Suspicion:
    """As bad as it is beside a Nova."""
    drift_class = replace(BY_NAME[each.kind.name], severity=each.kind.severity)
    key = Key(subject=subject_of(drift_class), id=each.key)
    return Suspicion(
        drift_class=drift_class, key=key, about=each.about, differs=each.says, hosts=each.hosts
    )
