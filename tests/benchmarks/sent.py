"""What surveys of Nova's hosts cost the service: python -m tests.benchmarks.sent [HOSTS].

Each host has 50 guests with 4 disks.  PostgreSQL is real; Nova and Cinder agree with all hosts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import msgspec
import psycopg

import sql
from handlers.drift.beside_nova import found
from handlers.drift.seen import Cloud, SeenAttachment, SeenServer, SeenVolume
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.ports import GIB
from host_agent.shared.contract.survey import DiskShown, GuestShown, StorageShown, Survey
from host_agent.shared.contract.wire import read_in_turns
from ledger.agents.checks import checked_survey
from projections.reads.surveys import sent_since
from tests.benchmarks.servers import server
from tests.surveys import survey

HOSTS, GUESTS, DISKS, TIMES = 1_000, 50, "bcde", 20
STUCK = timedelta(minutes=15)


def id_of(*what: object) -> str:
    return str(uuid5(NAMESPACE_URL, "/".join(map(str, what))))


def disk(host: int, guest: int, letter: str) -> DiskShown:
    target, volume = f"vd{letter}", id_of("volume", host, guest, letter)
    source = f"/dev/disk/by-id/dm-uuid-mpath-3{volume.replace('-', '')}"
    return DiskShown(
        serial=volume,
        live=target,
        persistent=target,
        source=source,
        size_bytes=GIB,
        device_bytes=GIB,
    )


def shown_by(host: int) -> Survey:
    guests = [
        GuestShown(
            server_id=id_of("server", host, number),
            power_state=PowerState.RUNNING,
            disks=tuple(disk(host, number, letter) for letter in DISKS),
        )
        for number in range(GUESTS)
    ]
    maps = (each.serial.replace("-", "") for guest in guests for each in guest.disks)
    storage = (
        StorageShown(kind="multipath_map", name=f"3{each}", recorded=False, used=True)
        for each in maps
    )
    return survey(boot_id=id_of("boot", host), guests=tuple(guests), storage=tuple(storage))


def cloud_of(hosts: dict[str, Survey]) -> Cloud:
    """All that they show, as Nova and Cinder have it."""
    servers, volumes, attachments = {}, {}, {}
    for host, shown in hosts.items():
        for guest in shown.guests:
            id_, ids = guest.server_id, tuple(each.serial for each in guest.disks)
            servers[id_] = SeenServer(id=id_, host=host, vm_state="active", volumes=ids)
            volumes.update({each: SeenVolume(id=each, status="in-use", size_gb=1) for each in ids})
            for each in ids:
                attachments[each] = SeenAttachment(
                    id=each, volume_id=each, server_id=id_, status="attached", host=host
                )
    return Cloud(now=datetime.now(UTC), servers=servers, volumes=volumes, attachments=attachments)


def told(text: str) -> None:
    sys.stdout.write(f"{text}\n")


@contextmanager
def clocked(what: str) -> Iterator[None]:
    began, cpu = time.monotonic(), time.process_time()
    yield
    took, used = time.monotonic() - began, time.process_time() - cpu
    told(f"{what}: {took:.2f} s, {used:.2f} s of it our CPU")


def send_all(
    connection: psycopg.Connection[Any], surveys: list[Survey], digest: str, *, whole: bool
) -> None:
    begin = _one(connection, "SELECT pg_current_wal_lsn()::text")
    with clocked(f"{len(surveys)} hosts send {'all' if whole else 'that nothing has changed'}"):
        for number, shown in enumerate(surveys):
            document = msgspec.json.encode(shown).decode() if whole else None
            boot_id = shown.boot_id if whole else None
            sent = {"host": f"hv{number}", "boot_id": boot_id, "document": document}
            more = {"digest": digest * 64, "made_at": datetime.now(UTC), "silent_after_s": 90.0}
            assert connection.execute(sql.query("surveys", "send"), sent | more).fetchone()
    written = _one(connection, "SELECT pg_current_wal_lsn() - %s::pg_lsn", begin)
    told(f"  WAL: {int(written) / 1e6:.1f} MB")


def _one(connection: psycopg.Connection[Any], query: Any, *values: object) -> Any:
    row = connection.execute(query, values).fetchone()
    assert row is not None
    return row[0]


def _question(connection: psycopg.Connection[Any], shown: Survey) -> None:
    guest = shown.guests[0]
    of = {"server_id": guest.server_id, "volume_id": guest.disks[0].serial, "young_s": 3600.0}
    with clocked("Cinder's question"):
        assert connection.execute(sql.query("surveys", "sent_shows"), of).fetchall() == [("hv0",)]


def main(hosts: int) -> None:
    surveys = [shown_by(number) for number in range(hosts)]
    raw = msgspec.json.encode(surveys[0])
    with clocked(f"{TIMES} surveys of {len(raw)} bytes are read, checked and written"):
        for _ in range(TIMES):
            msgspec.json.encode(checked_survey(read_in_turns(json.loads(raw), Survey)))
    with server() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        for digest, whole in (("a", True), ("b", True), ("b", False)):
            send_all(connection, surveys, digest, whole=whole)
        told(f"  table: {_one(connection, _SIZE) / 1e6:.1f} MB")
        _question(connection, surveys[0])
        with clocked("A look reads them"):
            shown = sent_since(connection, datetime.now(UTC) - timedelta(hours=1))
    cloud = cloud_of(shown)
    for given in ({}, shown):
        with clocked(f"A look compares, with {len(given)} hosts"):
            every = found(replace(cloud, hosts=given), STUCK)
        assert every == []


_SIZE = "SELECT pg_total_relation_size('surveys')"

if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else HOSTS)
