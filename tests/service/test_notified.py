"""Nova tells what it does, and each notification makes the observer look at that one server: by
oslo.messaging's own bus in memory, in the form of Nova 34, doubled, out of order, or lost.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from ledger.config import Observe
from ledger.log.application import Ledger
from ledger.log.clock import DatabaseClock
from ledger.nova_beside.notifications import STOP_S
from ledger.nova_beside.observer import Observer
from projections.catalog import ALL
from projections.reads.queries import Queries, read_pool
from projections.running.runner import ProjectionRunner
from tests.doubles.nova_notifications import PROJECT, USER, Teller, payload
from tests.doubles.running_cinder import running_cinder
from tests.doubles.simulated_nova import Server, SimulatedNova, running_nova
from tests.service.watched_world import Watched
from tests.stack import ADMIN, eventually

pytestmark = pytest.mark.slow

#: No look at everything is due again in the time of a test.
NEVER_S = 3600.0


class Notified:
    """A cloud of somebody else's that tells what it does, and who watches it."""

    def __init__(
        self, database_url: str, nova: SimulatedNova, another: Callable[[], Observer]
    ) -> None:
        self._url, self.nova, self._another = database_url, nova, another
        self._stack, self.bus = ExitStack(), Teller()
        self.begin()

    def begin(self) -> None:
        """A process that looks at everything, once, and then listens."""
        self.observer = self._another()
        self._stack.enter_context(at_work(self.observer))

    def end(self) -> None:
        self._stack.close()

    def volume(self) -> str:
        return self.nova.cinder.add_volume(project_id="theirs").id

    def tell(self, event: str, server: Server, volume_id: str | None = None, **data: Any) -> None:
        self.bus.tell(event, payload(server, volume_id, **data))

    def settle(self) -> None:
        """Until all that was told is done."""
        last, volume = self.nova.boot("last"), self.volume()
        self.nova.attach(last, volume)
        self.tell("instance.create.end", last)
        self.until(volume, "BlockDeviceMapping.DevicePlugged")

    def events(self, volume_id: str) -> list[dict[str, Any]]:
        async def ask() -> list[dict[str, Any]]:
            async with read_pool(self._url) as pool:
                return await Queries(pool).events(("volume_id", volume_id))

        return asyncio.run(ask())

    def until(self, volume_id: str, topic: str) -> dict[str, Any]:
        """The last event of that topic, once there is one."""

        def look() -> dict[str, Any] | None:
            found = [event for event in self.events(volume_id) if event["topic"] == topic]
            return found[-1] if found else None

        return eventually(look, topic)

    def counted(self, outcome: str) -> float:
        samples = next(iter(self.observer.heard.collect())).samples
        of = {"outcome": outcome}
        return sum(each.value for each in samples if each.labels == of and "total" in each.name)


@contextmanager
def at_work(observer: Observer) -> Iterator[None]:
    """In a loop of its own, as in a service; what it looks at is believed by now."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    running = asyncio.run_coroutine_threadsafe(observer.run(), loop)
    try:
        yield
    finally:
        running.cancel()
        asyncio.run_coroutine_threadsafe(observer.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def notified(database_url: str) -> Iterator[Notified]:
    with (
        Ledger(database_url) as ledger,
        running_cinder() as cinder,
        running_nova(cinder.model) as nova,
    ):
        cinder.model.add_volume(project_id="another")  # Cinder's lists are of all projects
        settings = Observe(
            auth={"auth_type": "admin_token", "endpoint": nova.url, "token": ADMIN},
            interval_s=NEVER_S,
            compute_endpoint=nova.url,
            volume_endpoint=cinder.endpoint,
            notifications="fake://",
        )
        runner = ProjectionRunner(database_url, ALL)
        runner.start()
        clock = DatabaseClock.of(database_url)
        another = partial(Observer, database_url, ledger, settings, clock)
        notified = Notified(database_url, nova, another)
        try:
            yield notified
        finally:
            notified.end()
            runner.stop()


def now() -> datetime:
    return datetime.now(UTC)


def seen_of(event: dict[str, Any]) -> dict[str, Any]:
    return dict(event["body"]["seen"])


def began(notified: Notified) -> tuple[Server, str]:
    """A server that the first look has seen, with the volume that it has."""
    server, volume = notified.nova.boot("db"), notified.volume()
    notified.nova.attach(server, volume)
    notified.tell("instance.create.end", server)
    notified.until(volume, "BlockDeviceMapping.DevicePlugged")
    notified.settle()
    return server, volume


def test_what_nova_tells_is_looked_at_at_once_and_says_who_asked(notified: Notified) -> None:
    server, _ = began(notified)
    volume = notified.volume()
    begun = now()
    notified.tell("instance.volume_attach.start", server, volume)
    mapping = notified.nova.attach(server, volume)
    notified.tell("instance.volume_attach.end", server, volume)
    attached = notified.until(volume, "Attachment.Completed")
    seen = seen_of(attached)
    assert seen["told"].pop("at")
    assert seen["told"].pop("event").startswith("instance.volume_attach.")
    assert seen["told"] == {
        "user_id": USER,
        "project_id": PROJECT,
        "request_id": "req-5b6c791d-5709-4f36-8fbe-c3e02869e35d",
    }
    assert attached["actor"] == "observer"
    mapped = notified.until(volume, "BlockDeviceMapping.MappingCreated")
    assert mapped["body"]["boot_index"] == 1

    detaching = now()
    notified.nova.detach(server, mapping)
    notified.tell("instance.volume_detach.end", server, volume)
    seen = seen_of(notified.until(volume, "Attachment.Deleted"))
    assert seen["told"]["event"] == "instance.volume_detach.end"
    after, before = (datetime.fromisoformat(seen[name]) for name in ("after", "before"))
    assert begun < after < detaching < before < now(), "the look before was at this server alone"
    assert {each.split(" ")[0] for each in notified.nova.asked} == {"GET"}


def test_what_no_look_confirms_is_not_recorded(notified: Notified) -> None:
    server, had = began(notified)
    volume, other = notified.volume(), notified.nova.boot("other")
    recorded = notified.events(had)
    notified.tell("instance.volume_attach.end", server, volume)
    notified.tell("instance.volume_detach.end", server, had)
    notified.tell("instance.delete.end", server)
    notified.nova.attach(other, volume)
    notified.tell("instance.create.end", other)
    notified.until(volume, "BlockDeviceMapping.DevicePlugged")
    assert notified.events(had) == recorded
    assert {event["server_id"] for event in notified.events(volume)} <= {other.id, None}


def test_a_deleted_server_is_seen_with_who_asked(notified: Notified) -> None:
    server, volume = began(notified)
    told = payload(server)
    notified.nova.delete(server)
    notified.bus.tell("instance.delete.end", told)
    released = notified.until(volume, "Volume.Released")
    assert seen_of(released)["told"]["user_id"] == USER


def test_what_nova_has_lost_is_found_by_a_look_at_everything(notified: Notified) -> None:
    """And what came twice, too late or in another order makes nothing of it."""
    server, had = began(notified)
    volume = notified.volume()
    notified.tell("instance.volume_detach.end", server, had)
    mapping = notified.nova.attach(server, volume)
    for _ in range(3):
        notified.tell("instance.volume_attach.end", server, volume)
        notified.tell("instance.volume_attach.start", server, volume)
    notified.until(volume, "BlockDeviceMapping.DevicePlugged")
    notified.settle()
    topics = [event["topic"] for event in notified.events(volume)]
    assert len(topics) == len(set(topics)), "each once"
    notified.nova.detach(server, mapping)  # and nothing is told of it
    notified.settle()
    assert "Attachment.Deleted" not in [event["topic"] for event in notified.events(volume)]
    notified.end()
    notified.begin()
    assert "told" not in seen_of(notified.until(volume, "Attachment.Deleted"))


def test_garbage_is_refused_and_counted_and_the_next_is_heard(notified: Notified) -> None:
    server, _ = began(notified)
    hostile = {"nova_object.data": {"uuid": "../../etc"}}
    garbage: Any
    for garbage in (None, 7, "x" * 100_000, [], {}, hostile):
        notified.bus.tell("instance.volume_attach.end", garbage)
    notified.tell("instance.volume_attach.end", server, "no id")
    notified.tell("instance.volume_attach.end", server, request_id="req\x1b[2J")
    notified.bus.tell("flavor.update", {"nova_object.data": {}})
    notified.tell("instance.exists", server)
    asked = len(notified.nova.asked)
    volume = notified.volume()
    notified.nova.attach(server, volume)
    notified.tell("instance.volume_attach.end", server, volume)
    notified.until(volume, "BlockDeviceMapping.DevicePlugged")
    assert (notified.counted("refused"), notified.counted("other")) == (8, 2)
    assert len(notified.nova.asked) - asked <= 12


def test_who_is_no_administrator_any_more_takes_nothing_for_gone(notified: Notified) -> None:
    """Nova would say 404 of each server of another project."""
    server, volume = began(notified)
    recorded = notified.events(volume)
    notified.nova.broken.add(refused := f"uuid={server.id}")
    del notified.nova.servers[server.id]
    notified.tell("instance.update", server)
    notified.settle()
    assert notified.events(volume) == recorded
    assert any(refused in each for each in notified.nova.asked)


def test_a_server_that_nova_denies_and_has_not_deleted_is_there(notified: Notified) -> None:
    server, volume = began(notified)
    recorded = notified.events(volume)
    notified.nova.denied.add(server.id)
    notified.tell("instance.delete.end", server)
    notified.settle()
    assert notified.events(volume) == recorded
    assert any(f"uuid={server.id}" in each and "deleted" in each for each in notified.nova.asked)


@pytest.mark.parametrize("bus", ["away", "hangs"])
def test_a_bus_that_does_not_answer_stops_no_look(watched: Watched, bus: str) -> None:
    """And keeps no service from ending."""
    nova, stack = watched.nova, watched.stack
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        if bus == "hangs":
            port.listen()
        url = f"rabbit://nova:s3cret@127.0.0.1:{port.getsockname()[1]}/"
        stack.settings = stack.settings.replace("[observe]", f"[observe]\nnotifications = '{url}'")
        server, volume = nova.boot("db"), watched.volume()
        nova.attach(server, volume)
        stack.start_service()
        watched.until("volumes", volume, "BlockDeviceMapping.DevicePlugged")
        watched.next_looks()
        assert "looks alone see" in stack.get("/readyz").text
        began = time.monotonic()
        assert stack.components[0].stop() == 0
        assert time.monotonic() - began < 10 * STOP_S
        assert "s3cret" not in stack.components[0].log.read_text()
