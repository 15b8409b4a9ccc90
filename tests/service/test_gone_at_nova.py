"""A Nova, or a Cinder, that is wrong about what is gone: no false answer ends anything in the log.

Look by look, in this process, with a log, its projections, and the simulated services over HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest

import sql
from aggregates.attachment import Attachment, AttachmentState
from aggregates.base import Actor, EventContext
from aggregates.instance import Instance
from aggregates.volume import Volume
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.survey import GuestShown
from ledger.config import Observe
from ledger.log.application import Ledger
from ledger.log.unit import Unit
from ledger.nova_beside import differences, gone
from ledger.nova_beside.observer import Observation, Observer, ObserverState
from ledger.nova_beside.reads import CutListError
from projections.catalog import ALL
from projections.running.runner import ProjectionRunner
from tests.doubles.running_cinder import running_cinder
from tests.doubles.simulated_nova import Server, SimulatedNova, running_nova
from tests.stack import ADMIN
from tests.surveys import survey

pytestmark = pytest.mark.slow

MINUTE_S = 60.0


class Looks:
    """Looks of one process, a minute apart, or as much as `look` says."""

    def __init__(self, ledger: Ledger, runner: ProjectionRunner, nova: SimulatedNova) -> None:
        self.ledger, self._runner, self.nova = ledger, runner, nova
        self._at_s, self._begun = 1000.0, datetime(2026, 11, 27, 12, tzinfo=UTC)
        self._state = ObserverState()

    def watch(self, observer: Observer) -> None:
        self._observer = observer

    def monotonic(self) -> float:
        return self._at_s

    def time(self) -> float:
        """By the database's clock."""
        return (self._begun + timedelta(seconds=self._at_s)).timestamp()

    def look(self, apart_s: float = MINUTE_S) -> list[str]:
        """The topics of what it has recorded, findings aside.  Raises CutListError."""
        self._at_s += apart_s
        before, look = self._head(), Observation(id=f"req-{uuid4()}", began=self._observer._now())
        self._observer._look(look, self._state)
        since = {id_: self._state.after(id_) for id_ in look.left}
        self._state = ObserverState(looked_at=look.began, since=since, asked=look.asked)
        self._runner.projected(self._head()).result(60)
        self.new = list(self.ledger.log_recorder.select_notifications(before + 1, 1000))
        topics = [each.topic for each in self.new]
        return [each for each in topics if not each.startswith("Finding.")]

    def findings(self) -> list[tuple[str, str | None]]:
        """What the last look has recorded of findings, with their classes where these are told."""
        of_findings = [each for each in self.new if each.topic.startswith("Finding.")]
        return [(each.topic, json.loads(each.state).get("drift_class")) for each in of_findings]

    def _head(self) -> int:
        return self.ledger.log_recorder.max_notification_id() or 0

    def volume(self) -> str:
        return self.nova.cinder.add_volume(project_id="theirs").id

    def server(self, *, volume: bool = True) -> Server:
        """One that a look has seen, beside another one."""
        self.nova.boot("neighbour")
        server = self.nova.boot("db")
        if volume:
            self.nova.attach(server, self.volume())
        self.look()
        return server

    def is_deleted(self, server: Server) -> bool:
        return self.ledger.load(Instance, UUID(server.id)).deleted


@pytest.fixture
def looks(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Looks]:
    with (
        Ledger(database_url) as ledger,
        running_cinder() as cinder,
        running_nova(cinder.model) as nova,
    ):
        cinder.model.add_volume(project_id="another")  # Cinder's lists are of all projects
        settings = Observe(
            auth={"auth_type": "admin_token", "endpoint": nova.url, "token": ADMIN},
            compute_endpoint=nova.url,
            volume_endpoint=cinder.endpoint,
        )
        runner = ProjectionRunner(database_url, ALL)
        runner.start()
        looks = Looks(ledger, runner, nova)
        monkeypatch.setattr(gone, "time", looks)
        monkeypatch.setattr(differences, "time", looks)
        looks.watch(Observer(database_url, ledger, settings, looks.time))
        yield looks
        runner.stop()


def test_a_server_that_nova_denies_is_there_as_long_as_cinder_knows_it(looks: Looks) -> None:
    server = looks.server()
    looks.nova.denied.add(server.id)
    for _ in range(3):
        assert looks.look(gone.GONE_S) == []
    looks.nova.denied.clear()
    assert looks.look() == []
    looks.nova.attach(server, looks.volume())
    assert "Attachment.Completed" in looks.look(), "its history goes on"


def test_a_server_that_a_host_of_ours_shows_is_there(looks: Looks) -> None:
    """Somebody has moved the guest by hand, to a host that was taken over."""
    nova, server = looks.nova, looks.server()
    [mapping] = server.mappings
    unit = Unit(looks.ledger)
    unit.get(Volume, mapping.volume_id).see(server.id, "ours", 1)
    unit.save(EventContext(actor=Actor(name="agent"), request_id="req-1"))
    nova.delete(server)
    nova.purge()
    assert looks.look() == looks.look(2 * gone.GONE_S) == []


def test_a_server_whose_guest_a_host_of_novas_sends_is_there(
    looks: Looks, database_url: str
) -> None:
    nova, server = looks.nova, looks.server(volume=False)
    guest = GuestShown(server_id=server.id, power_state=PowerState.RUNNING)
    document = msgspec.json.encode(survey(guests=(guest,))).decode()
    sent = {"host": "theirs-1", "digest": "0" * 64, "boot_id": "b", "document": document}
    nova.hosts.add("theirs-1")
    nova.delete(server)
    nova.purge()
    with psycopg.connect(database_url, autocommit=True) as connection:
        for _ in range(2):
            made = {"made_at": datetime.now(UTC), "silent_after_s": 90.0}
            connection.execute(sql.query("surveys", "send"), {**sent, **made})
            assert looks.look(gone.GONE_S) == []
    assert [name for _, name in looks.findings() if name] == ["guest_of_deleted"]
    assert looks.look(gone.GONE_S)[-1] == "Instance.Deleted", "the host is silent"


def test_a_server_that_nova_denies_for_less_than_a_day_is_there(looks: Looks) -> None:
    server = looks.server(volume=False)
    for _ in range(2):
        looks.nova.denied.add(server.id)
        assert looks.look() == looks.look(gone.GONE_S - 1) == []
        looks.nova.denied.clear()
        assert looks.look() == [], "and another day begins"


def test_a_server_that_is_not_projected_yet_is_not_over(looks: Looks) -> None:
    """A second notification may come before the projection of what the first has recorded."""
    server = looks.server()
    looks.nova.delete(server)
    assert not looks._observer._is_over(server.id, None, held=False)


def test_what_nova_lists_as_deleted_is_deleted_whatever_cinder_has_left(looks: Looks) -> None:
    server = looks.server()
    [mapping] = server.mappings
    server.mappings.clear()  # Cinder did not answer Nova, which goes on
    looks.nova.delete(server)
    assert looks.look()[-1] == "Instance.Deleted"
    assert looks.look() == []
    looks.nova.cinder.attachment_delete(mapping.attachment_id)
    assert looks.look() == ["Attachment.Disconnected", "Attachment.Deleted", "Volume.Released"]


def test_what_was_purged_before_anybody_looked_is_deleted_if_nobody_knows_it_for_a_day(
    looks: Looks,
) -> None:
    server = looks.server()
    looks.nova.delete(server)
    looks.nova.purge()
    assert looks.look() == looks.look(gone.GONE_S - 1) == []
    looks.nova.broken.add(server.id)
    assert looks.look(2.0) == [], "it must still say so"
    looks.nova.broken.clear()
    assert looks.look()[-1] == "Instance.Deleted"
    seen = json.loads(looks.new[-1].state)["seen"]
    after, before = (datetime.fromisoformat(seen[name]) for name in ("after", "before"))
    assert before - after > timedelta(seconds=gone.GONE_S), "since it was seen"


def test_a_list_that_ignores_what_it_is_asked_for_proves_nothing(looks: Looks) -> None:
    """Nova ignores the filters of who may not use them."""
    server = looks.server()
    looks.nova.denied.add(server.id)
    looks.nova.blunt = True
    assert looks.look() == []


def test_another_nova_is_not_believed(looks: Looks) -> None:
    """A wrong endpoint, after a change of the catalog, say: it says 404 of all."""
    nova, server = looks.nova, looks.server()
    there, nova.servers = nova.servers, {}
    with pytest.raises(CutListError, match="none of the 2 servers that it had"):
        looks.look(2 * gone.GONE_S)
    stranger = nova.boot("stranger", "theirs-1")
    with pytest.raises(CutListError, match="may be another cloud's"):
        looks.look()
    nova.servers = there
    assert looks.look() == []
    assert not looks.is_deleted(server)
    assert looks.ledger.load(Instance, UUID(stranger.id)).version == 0


def test_a_nova_that_lists_its_servers_as_deleted_is_the_same_though_their_hosts_are_gone(
    looks: Looks,
) -> None:
    nova, server = looks.nova, looks.server()
    for each in list(nova.servers.values()):
        nova.delete(each)
    nova.hosts.clear()
    nova.boot("new", "new-host")
    assert "Instance.Deleted" in looks.look()
    assert looks.is_deleted(server)


def test_a_nova_all_of_whose_servers_were_deleted_is_the_same(looks: Looks) -> None:
    looks.server()
    for server in list(looks.nova.servers.values()):
        looks.nova.delete(server)
    looks.nova.purge()
    assert looks.look() == []
    new = looks.nova.boot("new")
    assert looks.look() == ["Instance.ServerSeen", "Instance.ActionsSeen"]
    assert looks.look(gone.GONE_S)[-1] == "Instance.Deleted"
    assert not looks.is_deleted(new)


def test_an_attachment_that_nova_names_is_there_if_cinder_lacks_its_volume_too(
    looks: Looks,
) -> None:
    """Another Cinder, or one whose database is being restored."""
    cinder, server = looks.nova.cinder, looks.server()
    [mapping] = server.mappings
    volume = cinder.volumes.pop(mapping.volume_id)
    row = cinder.attachments.pop(mapping.attachment_id)
    assert looks.look() == looks.look() == []
    cinder.volumes[mapping.volume_id] = volume
    cinder.attachments[mapping.attachment_id] = row
    assert looks.look() == []
    cinder.attachment_delete(mapping.attachment_id)
    assert looks.look()[:2] == ["Attachment.Disconnected", "Attachment.Deleted"]
    attachment = looks.ledger.load(Attachment, UUID(mapping.attachment_id))
    assert attachment.state is AttachmentState.DELETED


def test_a_server_of_a_restored_nova_is_followed_and_what_has_ended_is_told(looks: Looks) -> None:
    nova, cinder, server = looks.nova, looks.nova.cinder, looks.server()
    [mapping] = server.mappings
    backup = cinder._as_it_is()
    nova.delete(server)
    assert looks.look()[-1] == "Instance.Deleted"

    nova.restore(server)
    server.mappings.append(mapping)
    tables = ("volumes", "attachments", "_by_volume")
    vars(cinder).update({name: getattr(backup, name) for name in tables})
    assert looks.look() == ["Instance.ServerSeen"]
    assert looks.look() == [], "not with each look"
    found = ("Finding.DriftFound", "attachment_ended")
    assert looks.findings() == [found, ("Finding.DriftConfirmed", None)]
    nova.attach(server, looks.volume())
    assert "Attachment.Completed" in looks.look(), "its history goes on"
    nova.detach(server, mapping)
    assert looks.look() == []
    assert looks.findings() == [("Finding.DriftGone", None)]
