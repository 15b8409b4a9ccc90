"""The scenarios of the generic tests: each flow, and worlds it starts in.

A new flow gets all of those tests by adding a `Scenario` here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from handlers.requests.build import BootDisk
from host_agent.shared.contract.messages import PowerState
from tests.flows.drifts import DRIFTS
from tests.growing import extend, extend_waiting, told
from tests.snapshots import delete_newest, delete_oldest, take, taken
from tests.world import HOST, IMAGE, OTHER, World


@dataclass(frozen=True)
class Scenario:
    """A flow, and the world it starts in.

    `fails_to`: what a failure leaves; None: what was before.  `repairs`: something is wrong in
    that world, which is all that a failure may leave, or less.
    """

    name: str
    world: Callable[[], World]
    ask: Callable[[World], str]
    fails_to: Callable[[dict[str, Any]], bool] | None = None
    repairs: bool = False

    def begin(self) -> World:
        """A world of its own for each case."""
        return prepared(self).copy()


@cache
def prepared(scenario: Scenario) -> World:
    return scenario.world()


RUNNING, STOPPED = PowerState.RUNNING, PowerState.SHUTDOWN


def _attached(power_state: PowerState = RUNNING, volumes: int = 1, **more: Any) -> World:
    world = World(power_state, volumes=volumes, **more)
    for volume_id in world.volumes:
        world.done(world.attach(volume_id))
    return world


def _with_a_spare() -> World:
    world = World(volumes=2, encrypted=True)
    return world.done(world.attach(world.volumes[0]))


def _after(*flows: str, power_state: PowerState = RUNNING, **more: Any) -> World:
    world = _attached(power_state, volumes=2, **more)
    for flow in flows:
        world.done(_do(flow)(world))
    return world


def _do(flow: str, **more: Any) -> Callable[[World], str]:
    moves = {"live_migrate", "resize", "evacuate", "unshelve"}
    where = {"destination": OTHER} if flow in moves else {}
    return lambda world: world.act(flow, **where, **more)


def _fenced() -> World:
    world = _attached(volumes=2)
    world.fence(HOST)
    return world


def _built(world: World) -> str:
    root = BootDisk(volume_id=world.volumes[0], boot_index=0)
    return world.build(root, BootDisk(create={"size_gb": 1}, delete_on_termination=True))


def _boots_from_volume(power_state: PowerState = STOPPED) -> World:
    world = World(None, volumes=2)
    world.done(world.build(BootDisk(volume_id=world.volumes[0], boot_index=0)))
    return world.done(world.act("stop")) if power_state is STOPPED else world


def _rootless() -> World:
    world = _boots_from_volume()
    return world.done(_detach_root(world))


def _roots(power_state: PowerState) -> World:
    """A server with a root volume and another one."""
    world = _boots_from_volume(power_state)
    return world.done(world.attach(world.volumes[1]))


def _reimage(world: World) -> str:
    return world.act("reimage", image=IMAGE)


def _detach_root(world: World) -> str:
    return world.detach(world.volumes[0], root_allowed=True)


def _attach_root(world: World) -> str:
    return world.attach(world.volumes[1], is_root=True)


def _is_error(summary: dict[str, Any]) -> bool:
    """Nothing is on a host, and what was reserved stays so (LP 1899649)."""
    nowhere = not any(summary["guests"].values()) and not any(summary["connected"].values())
    return summary["vm_state"] == "error" and nowhere and set(summary["cinder"]) <= {"reserved"}


def _mixed(*flows: str, fenced: bool = False) -> World:
    """A server with a volume of Cinder's old calls and one of the new ones (S1)."""
    world = World(volumes=2, legacy=True)
    world.done(world.attach(world.volumes[0]))
    world.legacy = False
    world.done(world.attach(world.volumes[1]))
    for flow in flows:
        world.done(_do(flow)(world))
    if fenced:
        world.fence(HOST)
    return world


def _offloaded() -> World:
    world = World()
    return world.done(world.act("shelve"))


def _reserved_offloaded() -> World:
    """Given by the old calls while the server was on no host: Cinder has no row of it."""
    world = World(legacy=True)
    world.done(world.act("shelve"))
    return world.done(world.attach())


def _grown_once() -> World:
    world = _attached()
    return world.done(extend(world))


def _told_cinder(summary: dict[str, Any]) -> bool:
    """The user sees it; the volume is as large as it was."""
    return (summary["volumes"], summary["sizes"]) == (["error_extending"], [1])


def _files(snapshots: int) -> World:
    """A volume that is a file on a share, with snapshots of it while it is in use."""
    return taken(_attached(driver="nfs"), snapshots)


def _shows_an_error(status: str, files: int) -> Callable[[dict[str, Any]], bool]:
    """Cinder's snapshot does; the guest has the files that it had."""
    return lambda summary: (
        (status in summary["snapshots"], summary["files"][HOST], summary["claims"])
        == (True, files, 0)
    )


def _swap(world: World) -> str:
    return world.swap(*world.volumes)


def _cinder_migrates() -> World:
    """Cinder copies to the second volume, which is to become the first."""
    world = _with_a_spare()
    old, new = (world.cinder.volume(volume_id) for volume_id in world.volumes)
    old.migration_status, new.migration_status = "migrating", f"target:{old.id}"
    return world


def _stays_on_the_old(summary: dict[str, Any]) -> bool:
    """Cinder deletes the new volume when it hears that the migration failed."""
    return (summary["volumes"], summary["cinder"]) == (["in-use"], ["attached"])


def _swap_for_cinder(world: World) -> str:
    return world.swap(*world.volumes, by_cinder=True)


def _delete_with_volumes(power_state: PowerState) -> World:
    world = World(power_state, volumes=2)
    for volume_id in world.volumes:
        world.done(world.attach(volume_id, delete_on_termination=True))
    return world


def _takes_nothing_away(summary: dict[str, Any]) -> bool:
    """A repair that fails may have done its one thing all the same; the server is as it was."""
    return (
        summary["vm_state"] in {"active", "deleted", "shelved_offloaded", "stopped"}
        and not summary["claims"]
    )


SCENARIOS = [
    Scenario("attach-running", World, World.attach),
    Scenario("attach-stopped", lambda: World(STOPPED), World.attach),
    Scenario("attach-rbd", lambda: World(driver="rbd"), World.attach),
    Scenario("attach-shared", lambda: World(multiattach=True), World.attach),
    Scenario("attach-encrypted", lambda: World(encrypted=True), World.attach),
    Scenario("detach-encrypted", lambda: _attached(encrypted=True), World.detach),
    Scenario("detach-running", _attached, World.detach),
    Scenario("detach-stopped", lambda: _attached(STOPPED), World.detach),
    Scenario("boot", lambda: World(None), _built, fails_to=_is_error),
    Scenario("boot-shared", lambda: World(None, multiattach=True), _built, fails_to=_is_error),
    Scenario("live-migrate", lambda: _attached(volumes=2), _do("live_migrate")),
    Scenario("live-migrate-bare", lambda: World(volumes=0), _do("live_migrate")),
    Scenario("resize", lambda: _attached(volumes=2), _do("resize", memory_mb=2048)),
    Scenario("migrate-stopped", lambda: _attached(STOPPED, volumes=2), _do("resize")),
    Scenario("confirm", lambda: _after("resize"), _do("confirm_resize")),
    Scenario("revert", lambda: _after("resize"), _do("revert_resize")),
    Scenario("evacuate", _fenced, _do("evacuate")),
    Scenario("shelve", lambda: _attached(volumes=2), _do("shelve")),
    Scenario("unshelve", lambda: _after("shelve"), _do("unshelve")),
    Scenario("attach-offloaded", _offloaded, World.attach),
    Scenario("detach-offloaded", lambda: _after("shelve"), World.detach),
    Scenario("root-detach", _boots_from_volume, _detach_root),
    Scenario("root-attach", _rootless, _attach_root),
    Scenario("swap", _with_a_spare, _swap),
    Scenario("migrate-volume", _cinder_migrates, _swap_for_cinder, fails_to=_stays_on_the_old),
    Scenario("stop", lambda: _attached(volumes=2), _do("stop")),
    Scenario("start", lambda: _after("stop"), _do("start")),
    Scenario("pause", _attached, _do("pause")),
    Scenario("unpause", lambda: _after("pause"), _do("unpause")),
    Scenario("reboot", lambda: _attached(volumes=2), _do("reboot")),
    Scenario("rebuild", lambda: _attached(volumes=2), _do("rebuild")),
    Scenario("reimage", lambda: _roots(RUNNING), _reimage),
    Scenario("reimage-stopped", lambda: _roots(STOPPED), _reimage),
    Scenario("delete", lambda: _delete_with_volumes(RUNNING), World.delete),
    Scenario("delete-offloaded", lambda: _after("shelve"), World.delete),
    Scenario("delete-resized", lambda: _after("resize"), World.delete),
    Scenario("delete-fenced", _fenced, World.delete),
    Scenario("refresh-stopped", lambda: _attached(STOPPED, volumes=2), _do("refresh")),
    Scenario("refresh-running", lambda: _attached(volumes=2), _do("refresh")),
    Scenario("grow", _attached, extend),
    Scenario("grow-rbd", lambda: _attached(driver="rbd"), extend),
    Scenario("grow-encrypted", lambda: _attached(encrypted=True), extend),
    Scenario("grow-stopped", lambda: _attached(STOPPED), extend),
    Scenario("grow-legacy", lambda: _attached(legacy=True), extend),
    Scenario("grow-again", _grown_once, told),
    Scenario(
        "grow-for-cinder", lambda: _attached(driver="rbd"), extend_waiting, fails_to=_told_cinder
    ),
    Scenario("snapshot", lambda: _files(0), take, _shows_an_error("error", 0)),
    Scenario("snapshot-again", lambda: _files(1), take, _shows_an_error("error", 1)),
    Scenario("unsnapshot", lambda: _files(1), delete_newest, _shows_an_error("error_deleting", 1)),
    Scenario(
        "unsnapshot-newest", lambda: _files(3), delete_newest, _shows_an_error("error_deleting", 3)
    ),
    Scenario(
        "unsnapshot-oldest", lambda: _files(2), delete_oldest, _shows_an_error("error_deleting", 2)
    ),
    Scenario("legacy-attach", lambda: World(legacy=True), World.attach),
    Scenario("legacy-detach", lambda: _attached(legacy=True), World.detach),
    Scenario("legacy-detach-offloaded", lambda: _after("shelve", legacy=True), World.detach),
    Scenario("legacy-live-migrate", lambda: _attached(volumes=2, legacy=True), _do("live_migrate")),
    Scenario("legacy-resize", lambda: _attached(volumes=2, legacy=True), _do("resize")),
    Scenario("legacy-revert", lambda: _after("resize", legacy=True), _do("revert_resize")),
    Scenario("legacy-shelve", lambda: _attached(volumes=2, legacy=True), _do("shelve")),
    Scenario("legacy-unshelve", lambda: _after("shelve", legacy=True), _do("unshelve")),
    Scenario("legacy-delete", lambda: _attached(volumes=2, legacy=True), World.delete),
    Scenario("convert", lambda: _attached(volumes=2, legacy=True), _do("convert")),
    Scenario("convert-stopped", lambda: _attached(STOPPED, legacy=True), _do("convert")),
    Scenario("convert-offloaded", lambda: _after("shelve", legacy=True), _do("convert")),
    Scenario("convert-reserved", _reserved_offloaded, _do("convert")),
    Scenario("convert-resized", lambda: _after("resize", legacy=True), _do("convert")),
    Scenario("mixed-live-migrate", _mixed, _do("live_migrate")),
    Scenario("mixed-revert", lambda: _mixed("resize"), _do("revert_resize")),
    Scenario("mixed-evacuate", lambda: _mixed(fenced=True), _do("evacuate")),
    Scenario("mixed-shelve", _mixed, _do("shelve")),
    Scenario("mixed-unshelve", lambda: _mixed("shelve"), _do("unshelve")),
    Scenario("mixed-reboot", _mixed, _do("reboot")),
    Scenario("mixed-delete", _mixed, World.delete),
    Scenario("mixed-convert", _mixed, _do("convert")),
    Scenario("mixed-convert-resized", lambda: _mixed("resize"), _do("convert")),
    *(
        Scenario(name, drift.world, drift.ask, fails_to=_takes_nothing_away, repairs=True)
        for name, drift in DRIFTS.items()
    ),
]
#: How the server is afterwards, and all attachments that it has then, by their states and the
#: hosts that have them; a drift says it of itself.
_ENDS = {
    "active: 1 attached compute-1": """
        attach-running attach-rbd attach-shared attach-encrypted swap migrate-volume legacy-attach
        grow grow-rbd grow-encrypted grow-legacy grow-again grow-for-cinder
        snapshot snapshot-again unsnapshot unsnapshot-newest unsnapshot-oldest
    """,
    "active: 2 attached compute-1": """
        boot boot-shared reimage revert start unpause reboot rebuild refresh-running legacy-revert
        convert mixed-revert mixed-reboot mixed-convert
    """,
    "active: 2 attached compute-2": """
        live-migrate confirm evacuate unshelve legacy-live-migrate legacy-unshelve
        mixed-live-migrate mixed-evacuate mixed-unshelve
    """,
    "active: none": """
        detach-encrypted detach-running live-migrate-bare legacy-detach
    """,
    "deleted: none": """
        delete delete-offloaded delete-resized delete-fenced legacy-delete mixed-delete
    """,
    "paused: 1 attached compute-1": "pause",
    "resized: 2 attached compute-1, 2 attached compute-2": """
        resize migrate-stopped legacy-resize convert-resized mixed-convert-resized
    """,
    "shelved_offloaded: 1 reserved": """
        attach-offloaded detach-offloaded legacy-detach-offloaded convert-reserved
    """,
    "shelved_offloaded: 2 reserved": "shelve legacy-shelve mixed-shelve convert-offloaded",
    "stopped: 1 attached compute-1": """
        attach-stopped root-attach convert-stopped grow-stopped
    """,
    "stopped: 2 attached compute-1": "stop refresh-stopped reimage-stopped",
    "stopped: none": "detach-stopped root-detach",
}
ENDS = {name: end for end, names in _ENDS.items() for name in names.split()}
ENDS |= {name: drift.ends for name, drift in DRIFTS.items()}


#: A property of all flows.
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)


def turn_of(scenario: Scenario) -> int:
    """Which of its points a sampled test begins with, so that scenarios meet them by turns."""
    return SCENARIOS.index(scenario)
