"""A guest on the first host that writes to its volumes, to be moved to the second."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from tests.lab.control import Lab
from tests.lab.guest import LabGuest, wait_node
from tests.lab.settings import ENV
from tests.lab.writing import Writer, assert_written

HERE, THERE = ENV["LAB_HOST"], ENV["LAB_HOST_2"]


class Moving:
    """A guest on the first host that writes to two volumes."""

    def __init__(self, lab: Lab, guest: LabGuest, volumes: list[str]) -> None:
        self.lab, self.guest, self.volumes = lab, guest, volumes
        for volume in volumes:
            lab.cloud.attach(guest.id, volume)
        with guest.console() as console:
            nodes = [wait_node(console, volume) for volume in volumes]
            self._writers = [Writer(console, node) for node in nodes]
            self.written = [writer.wait_progress(console) for writer in self._writers]

    def migrate(self) -> None:
        self.lab.cloud.admin(
            "server", "migrate", "--live-migration", "--host", THERE, self.guest.id
        )

    def outcome(self, flow: str) -> str:
        """Of the newest operation; the guest is where it is looked for."""
        operation = self.lab.ledger.wait_outcome(flow, self.volumes[0])
        return str(operation["outcome"] or operation["state"])

    def assert_on(self, host: str) -> None:
        """There and nowhere else: the guest, the attachments, and who has the volumes open."""
        assert self.guest.running_on() == self.guest.defined_on() == [host]
        self.guest.moved_to(host)
        for volume in self.volumes:
            assert [item.status for item in self.lab.cloud.attachments(volume)] == ["attached"]
            assert self.lab.cloud.attached_hosts(volume) == [host]
            assert self.lab.cloud.users(volume) == [host]
            assert self.guest.disk(volume) == self.guest.disk(volume, persistent=True) is not None

    def assert_writes_on(self) -> None:
        """It never stopped, and all it wrote is on the volumes."""
        last = self.stop_writing()
        self.detach()
        self.assert_kept(last)

    def stop_writing(self) -> list[int]:
        """It writes still, and then no more; the last it wrote to each volume."""
        with self.guest.console() as console:
            for writer in self._writers:
                writer.wait_progress(console)
            return [writer.stop(console) for writer in self._writers]

    def detach(self) -> None:
        for volume in self.volumes:
            self.lab.cloud.detach(self.guest.id, volume)

    def assert_kept(self, last: list[int]) -> None:
        for volume, count in zip(self.volumes, last, strict=True):
            assert_written(partial(self.lab.cloud.data, volume), count)


@contextlib.contextmanager
def held(moving: Moving) -> Iterator[None]:
    """The migration is under way, and goes on only afterwards."""
    moving.guest.hold_migration()
    moving.migrate()
    moving.guest.wait_migrating()
    yield
    with contextlib.suppress(Exception):  # it may have ended otherwise
        moving.guest.let_migration_go()
