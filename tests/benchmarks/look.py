"""Rows 13 and 14: a look at everything, where ledger, Cinder and hosts agree.

Each server has VOLUMES volumes; each host shows all that it has, with a record for each.  The
look is the service's own code, in this process.  Cinder's lists are a stand-in that answers at once
from the same tables, and hosts answer by themselves as soon as they are asked: what the real
ones take is theirs, and a look waits far longer for Cinder than it works (`[reconcile]
cinder_share`).  So row 13 is our own part alone.

CPU of the stand-in's own calls, and of watching, is taken off; threads of hosts are not the
look's.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar
from uuid import UUID

import orjson
import psycopg
from psycopg.rows import dict_row

import sql
from aggregates.look import Look
from host_agent.shared.cinder.lists import ListedAttachment, ListedVolume
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.survey import ConnectionShown, DiskShown, GuestShown
from ledger.log.application import Ledger
from ledger.reconcile.asking import LookRequests, own_context
from ledger.reconcile.look import WHOLE, LookSources, look
from ledger.upkeep import long_work
from projections.catalog import ALL
from projections.running.runner import ProjectionRunner
from projections.running.tables import prepare
from tests.benchmarks.figures import Figure, Size
from tests.benchmarks.region import cpu_s, memory_bytes
from tests.benchmarks.servers import server
from tests.surveys import survey as a_survey

HOSTS = 1_000
SERVERS = {Size.QUICK: 10, Size.FULL: 100}  # of each host
VOLUMES = 10
WARM = 10  # hosts of a first look, which loads and caches what is loaded and cached once
ASKED_S = 0.05
PER_S, MEMORY_MIB = 20_000, 64

Row = dict[str, Any]
L = TypeVar("L")

_FILL = """
CREATE TEMP TABLE placed AS
SELECT 'compute-' || h AS host, md5('server ' || h || ' ' || s)::uuid AS server_id, s
  FROM generate_series(%(first)s::int, %(last)s::int) AS h, generate_series(1, %(servers)s) AS s;
CREATE TEMP TABLE held AS
SELECT *, md5('volume ' || server_id || v)::uuid AS volume_id,
       md5('attachment ' || server_id || v)::uuid AS attachment_id
  FROM placed, generate_series(1, %(volumes)s) AS v;
INSERT INTO hosts (host, service_version, capabilities, epoch, fenced, registered_at, updated_at,
                   position, suspect)
SELECT DISTINCT host, 3, '{"survey": true}'::jsonb, 1, false, now(), now(), 0, false FROM placed;
INSERT INTO host_contact (host, seen_at) SELECT DISTINCT host, now() FROM placed;
INSERT INTO instances (server_id, name, host, project_id, power_state, vm_state, base_vm_state,
                       faults, devices, created_at, updated_at, position, deleted)
SELECT server_id, 's', host, 'p', 'running', 'active', 'active', '{}', '{}', now(), now(), 0, false
  FROM placed;
INSERT INTO attachments (attachment_id, volume_id, server_id, host, state, adopted, created_at,
                         spans, created_position, updated_at, position, access_mode)
SELECT attachment_id, volume_id, server_id, host, 'attached', false, now(), '[]', 0, now(), 0, 'rw'
  FROM held;
INSERT INTO mappings (bdm_id, server_id, volume_id, attachment_id, device_name,
                      delete_on_termination, multiattach, state, created_at, created_position,
                      updated_at, position, serial, access_mode)
SELECT md5('mapping ' || attachment_id)::uuid, server_id, volume_id, attachment_id,
       'vd' || chr(97 + v), false, false, 'plugged', now(), 0, now(), 0, volume_id, 'rw'
  FROM held;
DROP TABLE placed, held;
"""
_PAGE_OF = {
    name: f"SELECT attachment_id, volume_id, server_id, host FROM attachments"
    f" WHERE {name} > %s ORDER BY {name} LIMIT %s"
    for name in ("attachment_id", "volume_id")
}
_OF_VOLUME = (
    "SELECT attachment_id, volume_id, server_id, host FROM attachments WHERE volume_id = %s"
)
_NOBODY = "00000000-0000-0000-0000-000000000000"
_SHOWN = """
SELECT host, jsonb_agg(jsonb_build_array(a.server_id, a.volume_id, attachment_id, device_name)
                       ORDER BY a.server_id, a.volume_id) AS held
  FROM attachments AS a JOIN mappings USING (attachment_id) WHERE host = ANY(%s) GROUP BY host
"""
_ASKED = "SELECT host, wanted FROM surveys WHERE wanted IS NOT NULL"


def _fill(dsn: str, first: int, last: int, servers: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as db:
        told = {"first": first, "last": last, "servers": servers, "volumes": VOLUMES}
        psycopg.ClientCursor(db).execute(_FILL, told)
        db.execute("ANALYZE")


class Cinder:
    """Its lists at once, from what the ledger has; `cpu_s` of it."""

    def __init__(self, dsn: str) -> None:
        self._db = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)
        prepare(self._db)
        self.cpu_s = 0.0

    def own_project(self) -> str | None:
        return "service"

    def attachments(self, after: Sequence[str], limit: int) -> list[ListedAttachment]:
        return self._timed(lambda: list(map(_listed, self._page("attachment_id", after, limit))))

    def volumes(self, after: Sequence[str], limit: int) -> list[ListedVolume]:
        return self._timed(lambda: list(map(_volume, self._page("volume_id", after, limit))))

    def attachment(self, attachment_id: str) -> ListedAttachment:
        raise AssertionError(f"nothing differs, and {attachment_id} is asked for")

    def attachments_of(self, volume_id: str) -> list[ListedAttachment]:
        rows = self._db.execute(_OF_VOLUME, [volume_id]).fetchall()
        return [_listed(row) for row in rows]

    def volume(self, volume_id: str) -> ListedVolume:
        raise AssertionError(f"nothing differs, and {volume_id} is asked for")

    def backend_of_the_look(self) -> int:
        """Its process."""
        asked = "SELECT pid FROM pg_stat_activity WHERE application_name = 'attachment-ledger look'"
        return max((int(row["pid"]) for row in self._db.execute(asked).fetchall()), default=0)

    def _page(self, key: str, after: Sequence[str], limit: int) -> list[Row]:
        return self._db.execute(_PAGE_OF[key], (after[-1] if after else _NOBODY, limit)).fetchall()

    def _timed(self, ask: Callable[[], L]) -> L:
        began = time.thread_time()
        try:
            return ask()
        finally:
            self.cpu_s += time.thread_time() - began


def _listed(row: Row) -> ListedAttachment:
    return ListedAttachment(
        id=row["attachment_id"],
        volume_id=row["volume_id"],
        server_id=row["server_id"],
        status="attached",
        host=row["host"],
        mode="rw",
    )


def _volume(row: Row) -> ListedVolume:
    return ListedVolume(
        id=row["volume_id"],
        status="in-use",
        migration_status=None,
        made_for=None,
        attached=(_listed(row),),
    )


@contextmanager
def _hosts(dsn: str) -> Iterator[None]:
    """All of them answer as soon as they are asked."""
    over = threading.Event()

    def run() -> None:
        connect = partial(psycopg.connect, dsn, autocommit=True, row_factory=dict_row)
        with connect() as db, connect() as reading, reading.cursor() as shown:
            while not over.wait(ASKED_S):
                wanted = {row["host"]: row["wanted"] for row in db.execute(_ASKED).fetchall()}
                for row in shown.stream(_SHOWN, [list(wanted)]):  # one host's is in memory at once
                    _answer(db, row["host"], wanted[row["host"]], row["held"])

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _answer(db: psycopg.Connection[Row], host: str, token: str, held: list[list[str]]) -> None:
    survey = a_survey(
        boot_id="boot",
        epoch=1,
        guests=tuple(
            GuestShown(
                server_id=server_id,
                power_state=PowerState.RUNNING,
                disks=tuple(_disk(volume, target) for _, volume, _, target in own),
            )
            for server_id, own in groupby(held, itemgetter(0))
        ),
        connections=tuple(
            ConnectionShown(
                attachment_id=attachment,
                volume_id=volume,
                server_id=server_id,
                serial=volume,
                present=True,
                used=True,
            )
            for server_id, volume, attachment, _ in held
        ),
    )
    document = orjson.dumps(survey).decode()
    told = {"boot_id": "boot", "epoch": 1, "digest": "d", "document": document}
    db.execute(sql.query("surveys", "note"), {"host": host, "token": token, **told})


def _disk(volume_id: str, target: str) -> DiskShown:
    return DiskShown(
        serial=volume_id,
        live=target,
        persistent=target,
        readonly_live=False,
        readonly_persistent=False,
    )


@dataclass
class Looked:
    """What a look needed: CPU seconds of its thread without Cinder's, and of its backend."""

    ended: Look.LookEnded
    wall_s: float
    ours_s: float
    postgres_s: float
    memory_bytes: int


def _look(dsn: str, ledger: Ledger) -> Looked:
    cinder = Cinder(dsn)
    sides = LookSources(
        dsn=dsn,
        store=ledger,
        lists=cinder,
        share=1.0,
        silent_after_s=3_600.0,
        stop=threading.Event(),
    )
    look_id = LookRequests(dsn).ask({}, "asked", own_context())
    most, postgres_s, backend, watched_s = memory_bytes(os.getpid()), 0.0, 0, 0.0

    def watch(_: object) -> None:
        nonlocal most, postgres_s, backend, watched_s
        began = time.thread_time()
        most = max(most, memory_bytes(os.getpid()))
        backend = backend or cinder.backend_of_the_look()
        postgres_s = cpu_s(backend)
        watched_s += time.thread_time() - began

    before, began, cpu = most, time.monotonic(), time.thread_time()
    long_work.run(dsn, WHOLE, look(sides, whole=True), watch)
    wall_s = time.monotonic() - began
    ours_s = time.thread_time() - cpu - cinder.cpu_s - watched_s
    [*_, ended] = ledger.events.get(UUID(look_id))
    assert isinstance(ended, Look.LookEnded)
    assert (ended.outcome, ended.in_flight) == ("completed", 0)
    assert (ended.found, ended.unknown, ended.braked) == ({}, {}, {})
    return Looked(ended, wall_s, ours_s, postgres_s, most - before)


def figures(size: Size) -> Iterator[Figure]:
    """Rows 13 and 14."""
    with server() as dsn, Ledger(dsn) as ledger, _projected(dsn), _hosts(dsn):
        _fill(dsn, 1, WARM, SERVERS[size])
        _look(dsn, ledger)
        _fill(dsn, WARM + 1, HOSTS, SERVERS[size])
        looked = _look(dsn, ledger)
    compared, rows = looked.ended.compared, looked.ended.compared["attachment"]
    assert rows == compared["volume"] == compared["disk"] == HOSTS * SERVERS[size] * VOLUMES
    beside = ", ".join(f"{number} {name}s" for name, number in sorted(compared.items()))
    yield Figure(
        row=13,
        name="look: attachments per second of its own CPU",
        value=rows / looked.ours_s,
        unit="/s",
        target=PER_S,
        more_is_better=True,
        compared_with=beside,
    )
    yield Figure(
        row=13,
        name="look: CPU of the service",
        value=looked.ours_s,
        unit="s",
        compared_with=f"PostgreSQL {looked.postgres_s:.1f} s; {looked.wall_s:.0f} s of wall",
    )
    yield Figure(
        row=14,
        name="look: peak memory of the service above its memory before",
        value=looked.memory_bytes / 2**20,
        unit="MiB",
        target=MEMORY_MIB,
        compared_with=f"{HOSTS} hosts; includes their substitute",
    )


@contextmanager
def _projected(dsn: str) -> Iterator[None]:
    runner = ProjectionRunner(dsn, ALL)
    runner.start()
    try:
        yield
    finally:
        runner.stop()
