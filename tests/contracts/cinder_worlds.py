"""The worlds in which the contract of the `Cinder` port is tested.

A world gives the port under test and makes volumes.  The real one is used when
LEDGER_LAB_CINDER holds the v3 endpoint of a Cinder that has the volume types
LEDGER_LAB_CINDER_TYPE (default "fake"), the same with "-multi", and with "-limited" by a QoS
spec for the front end, and the encrypted "nfs-luks"; its Keystone is the one of `test_keystone`.
"""

from __future__ import annotations

import functools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from cinderclient import client as cinder_client
from cinderclient import exceptions
from keystoneauth1 import session
from keystoneauth1.service_token import ServiceTokenAuthWrapper

from host_agent.shared.cinder.calls import Retry
from host_agent.shared.cinder.client import CinderClient
from host_agent.shared.cinder.session import load_auth
from host_agent.shared.cinder.settings import CinderSettings, RetryLimits
from host_agent.shared.contract.ports import AttachmentView, Cinder, PortError
from host_agent.shared.faults import Faults
from ledger.trial.cinder.model.model import CinderModel
from tests.contracts.keystones import Real
from tests.doubles.direct_cinder import DirectCinder
from tests.doubles.running_cinder import RunningCinder, running_cinder

LAB_ENDPOINT = os.environ.get("LEDGER_LAB_CINDER")
LAB_TYPE = os.environ.get("LEDGER_LAB_CINDER_TYPE", "fake")
LAB_LUKS_TYPE = "nfs-luks"
#: What Cinder makes of the spec of the type "-limited", for 1 GiB.
LIMITS = {"total_iops_sec": 300, "minIOPS": "5"}
#: Cinder's qemu-img measures how fast it can hash, by a clock that may not tick meanwhile.
LUKS_ATTEMPTS = 10
READY_DEADLINE_S = 180.0  # what is slow is no failure


def status(world: World, volume: str) -> str:
    return world.port.volume(volume).status


def connector(host: str = "compute-a", **more: Any) -> dict[str, Any]:
    return {
        "platform": "x86_64",
        "os_type": "linux",
        "ip": "127.0.0.1",
        "host": host,
        "multipath": False,
        "do_local_attach": False,
        "initiator": f"iqn.2005-03.org.open-iscsi:{host}",
        **more,
    }


def refusal(call: Callable[[], object]) -> PortError:
    with pytest.raises(PortError) as caught:
        call()
    return caught.value


def new_uuid() -> str:
    return str(uuid.uuid4())


class FakeTime:
    """A clock that only sleeping moves, and remembers how long each sleep was."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def retry(self, limits: RetryLimits | None = None, chance: float = 1.0) -> Retry:
        return Retry(
            limits or RetryLimits(), clock=self.clock, sleep=self.sleep, chance=lambda: chance
        )


def client_of(running: RunningCinder, time_: FakeTime | None = None, **more: Any) -> CinderClient:
    """The real adapter on a running simulation; it never really sleeps."""
    settings = CinderSettings(endpoint=running.endpoint, project_id="sim-project", **more)
    return CinderClient(settings, retry=(time_ or FakeTime()).retry(settings.backoff))


class World(Protocol):
    port: Cinder
    kind: str  # a volume type
    project: str  # ours
    other_project: str  # in which we have a role, too

    def new_volume(
        self, *, multiattach: bool = False, encrypted: bool = False, limited: bool = False
    ) -> str: ...

    def new_snapshot(self, volume_id: str) -> str: ...

    def clean_later(self, volume_id: str) -> None: ...

    def reset(self, volume_id: str, status: str) -> None: ...


class SimulatedWorld:
    """Either adapter on a model; faults can be scripted."""

    kind, project = "rbd", "sim-project"
    other_project = "33333333333333333333333333333333"

    def __init__(self, port: Cinder, model: CinderModel, faults: Faults, time_: FakeTime) -> None:
        self.port = port
        self.model = model
        self.faults = faults
        self.time = time_

    def new_volume(
        self, *, multiattach: bool = False, encrypted: bool = False, limited: bool = False
    ) -> str:
        specs = LIMITS if limited else None
        return self.model.add_volume(
            multiattach=multiattach, encrypted=encrypted, qos_specs=specs
        ).id

    def new_snapshot(self, volume_id: str) -> str:
        return self.model.add_snapshot(volume_id).id

    def clean_later(self, volume_id: str) -> None:
        """The model goes with the test."""

    def reset(self, volume_id: str, status: str) -> None:
        self.model.reset_status(volume_id, {"status": status})


@contextmanager
def direct_world() -> Iterator[SimulatedWorld]:
    model, faults, time_ = CinderModel(), Faults(), FakeTime()
    port = DirectCinder(model, faults, retry=time_.retry())
    yield SimulatedWorld(port, model, faults, time_)


@contextmanager
def http_world() -> Iterator[SimulatedWorld]:
    time_ = FakeTime()
    with running_cinder() as running:
        port = client_of(running, time_)
        yield SimulatedWorld(port, running.model, running.faults, time_)
        port.close()


@dataclass(frozen=True)
class Service:
    """Who may do everything in the lab's Cinder, and makes volumes in its project and another."""

    login: dict[str, Any]
    project: str
    other_project: str


@functools.cache
def lab_service() -> Service:
    keystone = Real(os.environ["LEDGER_LAB_KEYSTONE"], os.environ["LEDGER_LAB_KEYSTONE_PASSWORD"])
    login = keystone.options("contract", "service", "admin", project="contract")
    other = keystone.grant(login["user_id"], "member", project="other")
    return Service(login, login["project_id"], other)


class LabWorld:
    """A real Cinder; cleans up the volumes it made."""

    kind = LAB_TYPE

    def __init__(self, endpoint: str) -> None:
        service = lab_service()
        self.project, self.other_project = service.project, service.other_project
        settings = CinderSettings(endpoint=endpoint, auth=service.login)
        self.port: Cinder = CinderClient(settings)
        auth = load_auth(service.login)
        self._session = session.Session(ServiceTokenAuthWrapper(auth, auth))
        self._cinder = cinder_client.Client(
            "3.71", session=self._session, endpoint_override=f"{endpoint}/{self.project}"
        )
        self._made: list[str] = []

    def new_volume(
        self, *, multiattach: bool = False, encrypted: bool = False, limited: bool = False
    ) -> str:
        kind = LAB_TYPE + ("-multi" if multiattach else "-limited" if limited else "")
        kind = LAB_LUKS_TYPE if encrypted else kind
        for _ in range(LUKS_ATTEMPTS):
            volume_id: str = self._cinder.volumes.create(size=1, volume_type=kind).id
            self.clean_later(volume_id)
            if not encrypted or self._is_made(volume_id):
                break
        until_available(self.port, volume_id)
        return volume_id

    def new_snapshot(self, volume_id: str) -> str:
        made: str = self._cinder.volume_snapshots.create(volume_id).id
        until(
            lambda: self._cinder.volume_snapshots.get(made).status == "available",
            f"snapshot {made} is made",
        )
        return made

    def _is_made(self, volume_id: str) -> bool:
        def status() -> str:
            return self.port.volume(volume_id).status

        until(lambda: status() in ("available", "error"), f"volume {volume_id} is made")
        return status() == "available"

    def clean_later(self, volume_id: str) -> None:
        self._made.append(volume_id)

    def reset(self, volume_id: str, status: str) -> None:
        self._cinder.volumes.reset_state(volume_id, status)

    def clean(self) -> None:
        for volume_id in self._made:
            until(lambda volume=volume_id: self._removed(volume), f"volume {volume_id} is deleted")  # type: ignore[misc]
        self._session.session.close()

    def _removed(self, volume_id: str) -> bool:
        """Not while Cinder works on it: that would go on, whatever its status is reset to."""
        try:
            volume = self._cinder.volumes.get(volume_id)
            if not volume.service_uuid and volume.status != "error":
                return False  # is being made
            for row in self._cinder.attachments.list(search_opts={"volume_id": volume_id}):
                self._cinder.attachments.delete(row.id)
            self._cinder.volumes.reset_state(volume_id, "available", attach_status="detached")
            self._cinder.volumes.delete(volume_id, cascade=True)
        except exceptions.NotFound:
            return True
        except exceptions.BadRequest:
            return False  # goes, by itself
        return True


@contextmanager
def lab_world() -> Iterator[LabWorld]:
    if LAB_ENDPOINT is None:
        raise AssertionError("LEDGER_LAB_CINDER is not set")
    world = LabWorld(LAB_ENDPOINT)
    try:
        yield world
    finally:
        world.clean()


WORLDS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "direct": direct_world,
    "http": http_world,
    "lab": lab_world,
}
SIMULATED = ["direct", "http"]
ALL = [
    *SIMULATED,
    pytest.param(
        "lab",
        marks=[
            pytest.mark.lab,
            pytest.mark.skipif(
                LAB_ENDPOINT is None,
                reason="LEDGER_LAB_CINDER does not hold the v3 endpoint of a real Cinder",
            ),
        ],
    ),
]


def attached(world: World, volume: str, server: str, host: str = "compute-a") -> AttachmentView:
    row = world.port.attachment_create(volume, server)
    world.port.attachment_update(row.id, connector(host))
    world.port.attachment_complete(row.id)
    return world.port.attachment(row.id)


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + READY_DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"not in {READY_DEADLINE_S} s: {what}"
        time.sleep(0.02)


def until_available(port: Cinder, volume_id: str) -> None:
    until(lambda: port.volume(volume_id).status == "available", f"volume {volume_id} is available")
