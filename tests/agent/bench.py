"""What the agent's tests share: a simulated host with a simulated Cinder, in this process."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from host_agent.executor import Executor, ExecutorLimits, Hooks
from host_agent.locks import Locks
from host_agent.reporting import Verdict
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import (
    Command,
    CommandStep,
    GuestOrder,
    PowerState,
    Report,
    StepResult,
    Verb,
)
from host_agent.shared.contract.ports import Brick, Cinder, Guests, Keys
from host_agent.shared.faults import Faults
from host_agent.simulated.adapters import SimulatedBrick, SimulatedGuests, SimulatedStorage
from host_agent.simulated.host_state import HostState, guest_state
from host_agent.storage.keys import KeyManagers
from host_agent.storage.records import Record
from host_agent.survey import Surveyor
from host_agent.verbs import GUEST_VERBS, VERBS
from host_agent.verbs.context import Ports, RunContext, Waits
from ledger.trial.cinder.model.model import CinderModel
from tests.doubles.direct_cinder import DirectCinder
from tests.guards import check_outputs

ATTACH = (
    Verb.ATTACHMENT_UPDATE,
    Verb.VOLUME_WAIT_READY,
    Verb.VOLUME_CONNECT,
    Verb.DISK_PLUG,
    Verb.ATTACHMENT_COMPLETE,
)
DETACH = (Verb.DISK_UNPLUG, Verb.VOLUME_DISCONNECT, Verb.ATTACHMENT_DELETE)
WAIT_S = 90.0
PASSPHRASE = "5ec2e7" * 8  # of all encrypted volumes, whose key is Cinder's fixed one


def eventually(holds: Callable[[], Any], what: str | Path, deadline_s: float = WAIT_S) -> Any:
    """Wait until `holds()` is true, and return what it returned; a log is shown as it is then."""
    end = time.monotonic() + deadline_s
    while not (found := holds()):
        if time.monotonic() > end:
            told = what.read_text() if isinstance(what, Path) else what
            raise AssertionError(f"not within {deadline_s:g} s: {told}")
        time.sleep(0.01)
    return found


class FakeClock:
    """Time that passes by waiting."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.waited: list[float] = []

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.time += seconds


class Recorder:
    """A port that notes the calls that go through it."""

    def __init__(self, port: Any, name: str, calls: list[str]) -> None:
        self._port, self._name, self._calls = port, name, calls

    def __getattr__(self, call: str) -> Any:
        method = getattr(self._port, call)

        def noted(*args: Any, **kwargs: Any) -> Any:
            self._calls.append(f"{self._name}.{call}")
            return method(*args, **kwargs)

        return noted


@dataclass
class Servers:
    """The ledger's answer to who else uses a volume on this host (ports.VolumeUsers)."""

    by_attachment: dict[str, tuple[str, str]] = field(default_factory=dict)
    asked: int = 0

    def others(self, volume_id: str, attachment_id: str) -> list[str]:
        self.asked += 1
        return [
            server_id
            for id_, (volume, server_id) in self.by_attachment.items()
            if volume == volume_id and id_ != attachment_id
        ]


@dataclass(kw_only=True)
class Bench:
    """One host: its Cinder, its state, and calls made on any port, in order."""

    host: str = "compute-1"
    driver: str = "iscsi"
    encrypted: bool = False  # all volumes that are made here
    model: CinderModel = field(default_factory=CinderModel)
    faults: Faults = field(default_factory=Faults)
    store: HostState = field(default_factory=HostState)
    clock: FakeClock = field(default_factory=FakeClock)
    calls: list[str] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)
    users: Servers = field(default_factory=Servers)

    def __post_init__(self) -> None:
        direct = DirectCinder(self.model, self.faults)
        self.cinder: Cinder = Recorder(direct, "cinder", self.calls)
        brick = SimulatedBrick(self.store, self.faults, self.host)
        guests = SimulatedGuests(self.store, self.faults, self.host)
        self.keys: Keys = Recorder(KeyManagers(PASSPHRASE), "keys", self.calls)
        self.brick: Brick = Recorder(brick, "brick", self.calls)
        self.guests: Guests = Recorder(guests, "guests", self.calls)

    def surveyor(self, **over: Any) -> Surveyor:
        storage = SimulatedStorage(self.store, self.faults, self.host)
        return Surveyor(self.guests, self.records, storage, "boot-1", **over)

    def server(self, power: PowerState = PowerState.RUNNING, **definition: Any) -> str:
        server_id = str(uuid.uuid4())
        with self.store.edit() as state:
            state["guests"][server_id] = guest_state(
                server_id=server_id, power_state=power.value, **definition
            )
        return server_id

    def lane(self, server_id: str | None = None, volume_id: str | None = None, **over: Any) -> Lane:
        """A reserved attachment of a (new) volume to a (new) server."""
        server_id = server_id or self.server()
        known = {key: over.pop(key) for key in ("shared_targets", "service_uuid") if key in over}
        if volume_id is None:
            multi = over.get("multiattach", False)
            driver = over.pop("driver", self.driver)
            volume_id = self.model.add_volume(
                driver=driver, multiattach=multi, encrypted=self.encrypted, **known
            ).id
        view = DirectCinder(self.model).attachment_create(volume_id, server_id)
        over.setdefault("device_name", "vdb")
        return Lane(
            server_id=server_id,
            volume_id=volume_id,
            bdm_id=str(uuid.uuid4()),
            attachment_id=view.id,
            **over,
        )

    def old_lane(self, server_id: str | None = None, **over: Any) -> Lane:
        """A volume reserved by Cinder's old calls, for a (new) server."""
        volume_id = self.model.add_volume(driver=self.driver).id
        self.cinder.reserve(volume_id)
        over.setdefault("device_name", "vdb")
        over.setdefault("attachment_id", str(uuid.uuid4()))
        server_id = server_id or self.server()
        return Lane(
            server_id=server_id, volume_id=volume_id, bdm_id=str(uuid.uuid4()), legacy=True, **over
        )

    def context(self, **over: Any) -> RunContext:
        waits = Waits(ready_deadline_s=30.0, ready_poll_s=1.0)
        return RunContext(**{**vars(self.world()), "clock": self.clock, "waits": waits, **over})

    def run(self, lane: Lane, *verbs: Verb, context: RunContext | None = None) -> dict[str, Any]:
        """Run verbs in order in one context; the outputs of the last."""
        context = context or self.context()
        outputs: dict[str, Any] = {}
        for verb in verbs:
            outputs = check_outputs(VERBS[verb](context, lane))
        return outputs

    def order(self, verb: Verb, order: GuestOrder, **over: Any) -> dict[str, Any]:
        """Run a verb for a whole server."""
        return check_outputs(GUEST_VERBS[verb](self.context(**over), order))

    def attached(self, server_id: str | None = None, **over: Any) -> Lane:
        lane = self.lane(server_id, **over)
        self.run(lane, *ATTACH)
        self.calls.clear()
        return lane

    def two_users(self, **over: Any) -> tuple[Lane, Lane]:
        """A multi-attach volume in two guests; the ledger knows of both."""
        first = self.attached(multiattach=True, **over)
        second = self.attached(volume_id=first.volume_id, multiattach=True)
        for lane in (first, second):
            self.users.by_attachment[lane.attachment_id or ""] = (lane.volume_id, lane.server_id)
        return first, second

    def world(self) -> Ports:
        return Ports(
            host=self.host,
            cinder=self.cinder,
            brick=self.brick,
            guests=self.guests,
            users=self.users,
            storage=SimulatedStorage(self.store, self.faults, self.host),
            keys=self.keys,
            records=self.records,
        )


_positions = itertools.count(1)


def command(what: Lane | GuestOrder, verbs: tuple[Verb, ...] = ATTACH, **over: Any) -> Command:
    defaults: dict[str, Any] = {
        "operation_id": str(uuid.uuid4()),
        "run": 1,
        "position": next(_positions),
        "epoch": 1,
        "request_id": f"req-{uuid.uuid4()}",
        "flow": "attach",
        "steps": tuple(CommandStep(name=verb.value, verb=verb) for verb in verbs),
    }
    about = "guest" if isinstance(what, GuestOrder) else "lane"
    return Command(**{**defaults, about: what, **over})


@contextmanager
def running_executor(
    world: Ports,
    lock_path: Path,
    report: Callable[[Report], Verdict],
    *,
    workers: int = 4,
    queue_max: int = 64,
    **hooks: Any,
) -> Iterator[Executor]:
    executor = Executor(
        world,
        Locks(lock_path),
        Hooks(report=lambda said, _changed: report(said), **hooks),
        limits=ExecutorLimits(workers=workers, queue_max=queue_max),
        waits=Waits(ready_deadline_s=2.0, ready_poll_s=0.01),
    )
    executor.start()
    try:
        yield executor
    finally:
        assert executor.stop(WAIT_S), "a run did not end"


class Reports:
    """A ledger in this process: records reports, answers from `verdicts`, can hold them."""

    def __init__(self) -> None:
        self.got: list[Report] = []
        self.verdicts: list[Verdict] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, report: Report) -> Verdict:
        self.got.append(report)
        assert self.gate.wait(WAIT_S)
        if self.verdicts:
            return self.verdicts.pop(0)
        return Verdict.STOP if report.results[-1].error else Verdict.CONTINUE

    def results(self) -> list[StepResult]:
        return [result for report in self.got for result in report.results]

    def steps(self) -> list[str]:
        return [result.step for result in self.results()]

    def wait(self, count: int) -> list[StepResult]:
        """The results of so many steps."""
        eventually(lambda: len(self.results()) >= count, f"{count} results, got {self.steps()}")
        return self.results()


class Gauge:
    """Counts how many calls are inside at once, and can hold them there."""

    def __init__(self, expected: int = 1) -> None:
        self._lock = threading.Lock()
        self.inside = self.most = 0
        self.together = threading.Event()
        self._expected = expected

    @contextmanager
    def __call__(self, wait_s: float = 0.05) -> Any:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            if self.inside >= self._expected:
                self.together.set()
        try:
            self.together.wait(wait_s)
            yield
        finally:
            with self._lock:
                self.inside -= 1


class Holder:
    """Another process that holds a lock until released or killed."""

    def __init__(self, path: Path, name: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_hold, args=(str(path), name, theirs), daemon=True)
        self._process.start()
        theirs.close()
        assert self._ours.poll(WAIT_S), "the other process did not get the lock"

    def release(self) -> None:
        self._ours.close()

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        self._ours.close()
        self._process.join(WAIT_S)
        assert not self._process.is_alive()


def _hold(path: str, name: str, line: Connection) -> None:
    with Locks(Path(path)).hold([name], FakeClock()):
        line.send("held")
        line.poll(WAIT_S)  # also true when the other end is closed


@contextmanager
def lock_held_elsewhere(path: Path, name: str) -> Iterator[Holder]:
    holder = Holder(path, name)
    try:
        yield holder
    finally:
        holder.end()
