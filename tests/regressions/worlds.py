"""What these tests need of a world beyond `tests.world`: more servers, other hosts' faults.

Nothing in here asserts; the rules are in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import Any
from uuid import uuid5

from aggregates.host import Host, host_uuid
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import OperationState
from handlers.requests.guards import Contact
from host_agent.leftovers import LeftoversRelease
from host_agent.libvirt import disk_xml
from host_agent.locks import Locks
from host_agent.shared.contract.messages import ErrorKind, PowerState, Release
from host_agent.simulated.host_state import guest_state
from host_agent.verbs.context import Ports as AgentWorld
from ledger.core.requests import Fleet
from ledger.trial.cinder.model.rows import StoredAttachment as Row
from tests.memory import Crash, Trouble
from tests.world import CONTEXT, HOST, NAMES, OTHER, Broken, World

RUNNING, STOPPED = PowerState.RUNNING, PowerState.SHUTDOWN
#: No host answers.
SILENT = Fleet(contact=lambda _: Contact(alive=False, since="09:00"))
NEIGHBOUR = str(uuid5(NAMES, "neighbour"))
ROUNDS_MAX = 4000
CINDER_CALLS = (
    *("volume", "attachment", "attachments", "attachment_create", "attachment_update"),
    *("attachment_complete", "attachment_delete", "volume_delete", "volume_create"),
)


class Street(World):
    """A world with a second server, which is `meant` while the block lasts."""

    def add_neighbour(self, host: str = HOST, server_id: str = NEIGHBOUR) -> None:
        with self.hosts[host].edit() as state:
            state["guests"][server_id] = guest_state(
                server_id=server_id, project_id="p", devices=[]
            )
        self.register(host)

    @contextmanager
    def meant(self, server_id: str) -> Iterator[None]:
        before, self.server_id = self.server_id, server_id
        try:
            yield
        finally:
            self.server_id = before

    def mappings(self) -> list[BlockDeviceMapping]:
        return [m for m in super().mappings() if m.server_id == self.server_id]


def attached(
    power_state: PowerState = RUNNING,
    *,
    volumes: int = 1,
    server: dict[str, Any] | None = None,
    **more: Any,
) -> World:
    """A server with all the world's volumes; `server`: what each attach asks for besides."""
    world = World(power_state, volumes=volumes, **more)
    for volume_id in world.volumes:
        world.done(world.attach(volume_id, **(server or {})))
    world.trouble = Trouble()
    return world


def offloaded(**more: Any) -> World:
    world = attached(**more)
    world.done(world.act("shelve"))
    world.trouble = Trouble()
    return world


def migrate(world: World) -> str:
    return world.act("live_migrate", destination=OTHER)


def broken_on(world: World, host: str, call: str, kind: ErrorKind = ErrorKind.UNKNOWN) -> Broken:
    """As `Broken`, on one host only (Cinder is the same for all)."""
    usual, world.ports = world.ports, world.agents[host]
    try:
        return Broken(world, call, kind)
    finally:
        world.ports = usual


def cinder_down(world: World) -> Callable[[], None]:
    """Nothing of Cinder answers until the function that is returned is called."""
    broken = [Broken(world, f"cinder.{call}") for call in CINDER_CALLS]

    def heal() -> None:
        for each in broken:
            each.heal()

    return heal


class Watched:
    """What one host's port was called with, by the name of the call."""

    def __init__(self, world: World, host: str, call: str) -> None:
        self.seen: list[Any] = []
        port, _, name = call.partition(".")
        tripwire = world.agents[host][port]
        real = getattr(tripwire, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.seen.append(args[0] if args else None)
            return real(*args, **kwargs)

        setattr(tripwire, name, watched)

    @property
    def attachment_ids(self) -> list[str]:
        """Whose connections it was called with."""
        return [info["attachment_id"] for info in self.seen]


def nth_point(make: Callable[[], World], ask: Callable[[World], str], call: str, n: int = 0) -> int:
    """The number of the n-th point of this name when nothing goes wrong."""
    world = make()
    world.trouble = Trouble()
    world.run(ask(world))
    return [at for at, met in enumerate(world.trouble.met) if met == call][n]


def run_until(world: World, operation_id: str, reached: Callable[[], bool]) -> None:
    """Step by step, and no further: everybody stops where `reached` becomes true.

    Or where nothing can go on any more.
    """
    for _ in range(ROUNDS_MAX):
        if reached() or world.operation(operation_id).state is not OperationState.RUNNING:
            return
        waits = world.service.advance(operation_id)
        alive = sorted(set(world.hosts) - world.dead)
        worked = [world.run_agent(operation_id, host, steps=1) for host in alive]
        if waits is None or any(worked):
            continue
        if waits.until is None:
            return
        world.clock.seconds = max(world.clock.seconds, waits.until)
    raise AssertionError("never reached")


def crash_at(world: World, operation_id: str, call: str) -> None:
    """Every process dies where `call` is about to be made; then they start anew."""
    port, _, name = call.partition(".")
    for ports in (world.agents[HOST], world.agents[OTHER]):
        setattr(ports[port], name, _die)
    try:
        run_until(world, operation_id, lambda: False)
    except Crash:
        world.boot()
        return
    raise AssertionError(f"{call} was never called")


def _die(*_args: Any, **_kwargs: Any) -> None:
    raise Crash


def host_returns(world: World, host: str, lock_path: Path) -> None:
    """A fenced host is let in again: it registers, clears what it is told to, and shows that."""
    world.dead.discard(host)
    world.service.change_host(host, methodcaller("unfence", "repaired"), CONTEXT)
    unknown = world.register(host)["unknown"]
    state = world.store.load(Host, host_uuid(host))
    ports = {name: port for name, port in world.agents[host].items() if name != "multiattach"}
    release = Release(*state.leftovers, unknown)
    LeftoversRelease(AgentWorld(**ports), Locks(lock_path), world.clock).clear(release)
    world.register(host)


def rows(world: World, volume: int = 0) -> list[Row]:
    return world.cinder.attachments_of(world.volumes[volume])


def status(world: World, volume: int = 0) -> str:
    return world.cinder.volume(world.volumes[volume]).status


def sources(world: World, host: str, server_id: str | None = None) -> dict[str, str | None]:
    """Per volume (its serial) what the guest's running disk reads and writes."""
    guest = world.hosts[host].read()["guests"][server_id or world.server_id]
    disks = disk_xml.parse(guest["live"] or guest["persistent"]).disks
    return {disk.serial: disk_xml.short(disk.place) for disk in disks if disk.serial}


def guests_on(world: World, host: str) -> dict[str, str]:
    """Guests and their power states."""
    return {id_: guest["power_state"] for id_, guest in world.hosts[host].read()["guests"].items()}


def mapping_of(world: World, volume_id: str) -> BlockDeviceMapping:
    return next(m for m in world.mappings() if m.volume_id == volume_id)
