"""A cloud for looks: rows of the projections, a simulated Cinder over HTTP, surveys of hosts."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any
from uuid import UUID, uuid4

import orjson
import psycopg
from psycopg.rows import dict_row

from aggregates.look import Look
from aggregates.volume import Volume
from handlers.drift import judge
from handlers.drift.classes import CLASSES
from host_agent.shared.cinder.lists import CinderLists
from host_agent.shared.cinder.settings import CinderSettings, RetryLimits
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.survey import (
    CAPABILITY,
    ConnectionShown,
    DiskShown,
    GuestShown,
    StorageShown,
    Survey,
)
from ledger.log.application import Ledger
from ledger.reconcile.asking import LookRequests
from ledger.reconcile.look import PART, WHOLE, LookSources, look
from ledger.trial.cinder.model.rows import StoredAttachment
from ledger.upkeep import long_work
from ledger.upkeep.long_work import WorkProgress
from projections.catalog import ALL
from projections.running.runner import ProjectionRunner
from projections.running.tables import prepare
from tests.doubles.running_cinder import RunningCinder, running_cinder
from tests.store.following import wait_until
from tests.world import CONTEXT

OWN_PROJECT, PROJECT = "service", "sim-project"
SILENT_S = 600.0  # longer than any test lasts on a busy machine
HOST = "compute-1"
_SERVER = """
INSERT INTO instances (server_id, name, host, project_id, power_state, vm_state, base_vm_state,
    faults, devices, created_at, updated_at, position, deleted)
VALUES (%s, 's', %s, %s, 'running', 'active', 'active', '{}', '{}', now(), now(), 0, %s)
"""
_MAPPING = """
INSERT INTO mappings (bdm_id, server_id, volume_id, attachment_id, device_name,
    delete_on_termination, multiattach, state, created_at, created_position, updated_at, position,
    serial, access_mode)
VALUES (%s, %s, %s, %s, 'vdb', false, false, 'plugged', now(), 0, now(), 0, %s, 'rw')
"""
_ATTACHMENT = """
INSERT INTO attachments (attachment_id, volume_id, server_id, host, state, adopted, created_at,
    spans, created_position, updated_at, position, access_mode)
VALUES (%s, %s, %s, %s, %s, false, now(), '[]', 0, now(), 0, 'rw')
"""


class Cloud:
    """What there is, and looks at it.  By default ledger, Cinder and hosts agree."""

    def __init__(self, dsn: str, ledger: Ledger, cinder: RunningCinder) -> None:
        self.dsn, self.ledger, self.cinder = dsn, ledger, cinder
        self.model = cinder.model
        self.db = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)
        prepare(self.db)
        settings = CinderSettings(
            endpoint=cinder.endpoint, project_id=OWN_PROJECT, backoff=RetryLimits(attempts_max=1)
        )
        self.lists = CinderLists(settings)
        self.stop = threading.Event()
        self.confirmed: list[str] = []
        self.guests: dict[str, list[GuestShown]] = {}
        self.connections: dict[str, list[ConnectionShown]] = {}
        self.storage: dict[str, list[StorageShown]] = {}
        self.secrets: dict[str, list[str]] = {}
        self.boots: dict[str, str] = {}
        self.blind: dict[str, tuple[str, ...]] = {}

    def close(self) -> None:
        self.stop.set()
        self.lists.close()
        self.db.close()

    # --- what there is ------------------------------------------------------------------------

    def server(
        self, host: str | None = HOST, *, deleted: bool = False, project: str = PROJECT
    ) -> str:
        server_id = str(uuid4())
        self.db.execute(_SERVER, (server_id, host, project, deleted))
        return server_id

    def attached(
        self, server: str | None = None, host: str = HOST, **cinder: Any
    ) -> StoredAttachment:
        """An attachment that ledger and Cinder have; `cinder`: what Cinder has otherwise."""
        server = server or self.server(host)
        volume = self.model.add_volume(status="in-use", attach_status="attached")
        row = self.in_cinder(volume.id, server, host=host, **cinder)
        self.db.execute(_ATTACHMENT, (row.id, volume.id, server, host, "attached"))
        self.db.execute(_MAPPING, (str(uuid4()), server, volume.id, row.id, volume.id))
        return row

    def in_cinder(self, volume_id: str, server: str | None, **more: Any) -> StoredAttachment:
        told = {"status": "attached", "mode": "rw", "host": HOST, "connection_info": {"a": 1}}
        row = StoredAttachment(
            id=str(uuid4()), volume_id=volume_id, instance=server, **{**told, **more}
        )
        self.model.put_attachment(row)
        return row

    def host(self, name: str = HOST, **more: Any) -> None:
        told = {"epoch": 1, "fenced": False, "suspect": False, **more}
        self.db.execute(
            "INSERT INTO hosts (host, service_version, capabilities, epoch, fenced, registered_at,"
            " updated_at, position, suspect)"
            " VALUES (%s, 2, %s, %s, %s, now(), now(), 0, %s)",
            (name, orjson.dumps({CAPABILITY: True}).decode(), *map(told.get, _HOST)),
        )
        self.db.execute(
            "INSERT INTO host_contact (host, seen_at) VALUES (%s, clock_timestamp())", (name,)
        )

    def shows(self, row: StoredAttachment, host: str = HOST, **disk: Any) -> None:
        """The host has the attachment connected, and its guest has the disk."""
        server, volume = str(row.instance), row.volume_id
        told = {"serial": volume, "live": "vdb", "persistent": "vdb", **disk}
        told |= {"readonly_live": False, "readonly_persistent": False}
        guest = GuestShown(
            server_id=server,
            power_state=PowerState.RUNNING,
            disks=(DiskShown(**told),),
            unlabelled=(),
        )
        self.guests.setdefault(host, []).append(guest)
        self.connections.setdefault(host, []).append(
            ConnectionShown(
                attachment_id=row.id,
                volume_id=volume,
                server_id=server,
                serial=volume,
                present=True,
            )
        )

    def at_work(self, server: str, volume: str, state: str = "running") -> None:
        """An operation that works on the volume, or is parked."""
        self.db.execute(
            "INSERT INTO operations (operation_id, flow, server_id, volume_ids, state, lanes,"
            " steps, unwinding, bound, request_id, started_at, started_position, updated_at,"
            " position, pivot_passed) VALUES (%s, 'attach', %s, %s::uuid[], %s, '[]', '[]', false,"
            " false, 'r', now(), 1, now(), 0, false)",
            (str(uuid4()), server, [volume], state),
        )

    def happens(self, volume_id: str) -> None:
        """Something happens to a volume: an event of the log about it."""
        volume = self.ledger.load(Volume, UUID(volume_id))
        volume.record(Volume.Claimed, claimant=str(uuid4()), server_id=str(uuid4()))
        self.ledger.save(volume, context=CONTEXT)

    # --- surveys ------------------------------------------------------------------------------

    def survey(self, host: str = HOST, **more: Any) -> Survey:
        told = {
            "boot_id": self.boots.get(host, "boot"),
            "epoch": 1,
            "guests": tuple(self.guests.get(host, ())),
            "connections": tuple(self.connections.get(host, ())),
            "storage": tuple(self.storage.get(host, ())),
            "secrets": tuple(self.secrets.get(host, ())),
            "blind": self.blind.get(host, ()),
            "why_blind": self.blind.get(host, ()),
        }
        return Survey(**{**told, **more})

    def answer(self, host: str = HOST, **more: Any) -> None:
        """The agent answers the question that stands, if there is one."""
        survey = self.survey(host, **more)
        self.db.execute(
            "UPDATE surveys SET token = wanted, taken_at = clock_timestamp(), wanted = NULL,"
            " asked_position = wanted_position, arrived_position = l.position, boot_id = %s,"
            " epoch = %s, digest = 'd', document = %s, wanted_at = NULL, wanted_position = NULL"
            " FROM log_head AS l"
            " WHERE host = %s AND wanted IS NOT NULL",
            (survey.boot_id, survey.epoch, orjson.dumps(survey).decode(), host),
        )

    @contextmanager
    def answering(self, *hosts: str, **more: Any) -> Iterator[None]:
        """Agents that answer as soon as they are asked."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(0.02):
                for host in hosts or (HOST,):
                    self.answer(host, **more)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    # --- looks --------------------------------------------------------------------------------

    def sides(self, share: float = 1.0) -> LookSources:
        return LookSources(
            dsn=self.dsn,
            store=self.ledger,
            lists=self.lists,
            share=share,
            silent_after_s=SILENT_S,
            stop=self.stop,
            confirmed=self.confirmed.append,
        )

    def ask(self, **scope: str) -> str:
        look_id = str(uuid4())
        self.db.execute(
            "INSERT INTO looks_asked (look_id, scope, why, context) VALUES (%s, %s, 'asked', %s)",
            (look_id, orjson.dumps(scope).decode(), orjson.dumps(asdict(CONTEXT)).decode()),
        )
        return look_id

    def run(self, *, whole: bool = True, watch: Any = lambda _: None, share: float = 1.0) -> None:
        long_work.run(
            self.dsn, WHOLE if whole else PART, look(self.sides(share), whole=whole), watch
        )

    def believing(self, *classes: str, **scope: str) -> Look.LookEnded:
        """A look that is told to believe these, however many they are."""
        told = {"believe": classes, "reason": "they are gone"}
        look_id = LookRequests(self.dsn).ask(scope, "asked", CONTEXT, **told)  # type: ignore[arg-type]
        self.run(whole=not scope)
        return self.ended(look_id)

    def look(self, **scope: str) -> Look.LookEnded:
        """A look from its asking to its end, and what it says of itself."""
        look_id = self.ask(**scope)
        self.run(whole=not scope)
        return self.ended(look_id)

    def ended(self, look_id: str) -> Look.LookEnded:
        [event] = [
            each
            for each in self.ledger.events.get(UUID(look_id))
            if isinstance(each, Look.LookEnded)
        ]
        return event

    def later(self, minutes: int = 0) -> None:
        """All was seen so much longer ago; by default as much as its class asks of a second look,
        and a minute.
        """
        self.projected()
        ago = "seen_at = seen_at - make_interval(secs => %s) WHERE drift_class = %s"
        for each in CLASSES:
            seconds = 60 * minutes or 60 + judge.apart_s(each)
            self.db.execute(f"UPDATE findings SET {ago}", (seconds, each.name))
        taken = "UPDATE surveys SET taken_at = taken_at - make_interval(secs => %s)"
        self.db.execute(taken, (60 * minutes or 60 + judge.APART_S,))

    def projected(self) -> None:
        [head] = self.db.execute("SELECT position FROM log_head").fetchall()

        def are() -> bool:
            [found] = self.db.execute("SELECT min(position) AS at FROM tracking").fetchall()
            return found["at"] is not None and found["at"] >= head["position"]

        wait_until(are)

    def findings(self, state: str | None = None) -> dict[str, dict[str, Any]]:
        """By class, as the projection has them; each class at most once."""
        self.projected()
        rows: Sequence[dict[str, Any]] = self.db.execute("SELECT * FROM findings").fetchall()
        found = [row for row in rows if state in {None, row["state"]}]
        assert len({row["drift_class"] for row in found}) == len(found), found
        return {row["drift_class"]: row for row in found}

    def states(self) -> dict[str, str]:
        return {name: row["state"] for name, row in self.findings().items()}


_HOST = ("epoch", "fenced", "suspect")


@contextmanager
def cloud_of(dsn: str) -> Iterator[Cloud]:
    """With projections that are followed, as the service follows them."""
    runner = ProjectionRunner(dsn, ALL)
    runner.start()
    try:
        with Ledger(dsn) as ledger, running_cinder() as cinder:
            cloud = Cloud(dsn, ledger, cinder)
            try:
                yield cloud
            finally:
                cloud.close()
    finally:
        runner.stop()


def nothing(_: WorkProgress) -> None:
    """Watch nothing."""
