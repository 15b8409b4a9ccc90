"""Somebody's hand in a storm: guests that are moved past the ledger, copies of volumes with marks.

A guest is moved as `virsh migrate` moves it, disks and all, and the host where it is now shows it.
Until it is moved back nobody may start it a second time, or free, delete or forget what it has:
clients go on asking, an operator has looks made and repairs what they find (decision 0088).  A copy
of a volume that we made, mark and all, may never be deleted (decision 0089).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, UUID, uuid5

from aggregates import errors
from aggregates.finding import Finding, FindingState
from aggregates.instance import Instance
from aggregates.operation import Operation
from handlers.drift import judge
from handlers.drift.judge import id_of
from handlers.drift.rows import Row
from handlers.engine.plan import plan_of
from host_agent.libvirt import disk_xml
from host_agent.shared.contract.origin import MADE_FOR
from host_agent.shared.contract.ports import PortError
from host_agent.simulated import host_state
from ledger.log.application import ConflictError
from ledger.log.unit import Unit
from tests.memory import Crash
from tests.simulation import drift
from tests.simulation.looking import look, repair, sight_of
from tests.world import CONTEXT

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

#: How likely something of it happens at a tick.
OFTEN = 0.015
#: Registrations within which a host has shown what it has, unless the ledger does not answer.
SHOWN_AFTER = 20


@dataclass(frozen=True)
class Moved:
    """A guest where it does not belong, on a host that had been fenced `fences` times until then;
    `connected`: what the host that it left had.
    """

    before: str
    now: str
    fences: int
    connected: frozenset[str]


class Hand:
    """Draws by itself, so that the stories of seeds stay what they were."""

    def __init__(self, cloud: Cloud, seed: int) -> None:
        self.cloud = cloud
        self.random = random.Random(f"hand {seed}")
        self.moved: dict[str, Moved] = {}
        self.touched: set[str] = set()  # was moved once
        self.copies: list[str] = []
        self.found: set[str] = set()  # findings about them

    def perhaps(self) -> None:
        """Something of it, now and then."""
        if self.random.random() >= OFTEN:
            return
        deeds: list[Callable[[], None]] = [
            self._move,
            self._put_one_back,
            self._copy,
            self._look_and_repair,
            self._look_and_repair,
        ]
        self.random.choice(deeds)()

    def end(self) -> None:
        """Everything is put back where it was, and what is over is found to be over."""
        for server_id in sorted(self.moved):
            self._put_back(server_id)
        for server_id in sorted(self.touched):
            self._bring_to_its_host(server_id)
        self.look_again()

    def broken(self) -> list[str]:
        """What has become of a guest that was moved, or of a copy, and should not have."""
        copies = [id_ for id_ in self.copies if id_ not in self.cloud.cinder.volumes]
        found = [f"{id_}, a copy of a volume that we made, was deleted" for id_ in copies]
        for server_id, moved in list(self.moved.items()):
            instance = self.cloud.look_at(Instance, UUID(server_id))
            if instance.host == moved.now and not instance.deleted:
                self._forget(server_id)  # it had no volume, and the ledger followed it
            elif self._fences(moved.now) > moved.fences:
                self._forget(server_id)  # an operator vouches for it, and the host will let it go
                self.cloud.vanished.add(server_id)
            elif instance.deleted or instance.host != moved.before:
                found.append(f"{server_id} runs on {moved.now} by hand; it is {instance.own_state}")
        return found

    # ------------------------------------------------------------------ deeds

    def _move(self) -> None:
        """A running guest that nobody is at work on goes to another host, which shows it."""
        cloud = self.cloud
        fit = {name for name, agent in cloud.agents.items() if agent.lives and self._is_sound(name)}
        movable = [
            instance
            for instance in cloud.known_servers()
            if instance.host in fit and self._is_idle(instance) and len(fit) > 1
        ]
        if not movable:
            return
        instance = self.random.choice(movable)
        before, server_id = str(instance.host), str(instance.id)
        now = self.random.choice(sorted(fit - {before}))
        with cloud.states[before].edit() as here, cloud.states[now].edit() as there:
            guest = here["guests"].pop(server_id)
            there["guests"][server_id] = guest
        connected = frozenset(here["connected"])
        self.moved[server_id] = Moved(before, now, self._fences(now), connected)
        cloud.by_hand.add(server_id)
        self.touched.add(server_id)
        cloud.happened["guest moved by hand"] += 1
        cloud.note(f"hand: {server_id[:8]} from {before} to {now}")
        known = self._is_known(server_id, before, now)
        if server_id not in self.moved:
            pass  # a fence, while it was told
        elif not known:
            self._put_back(server_id)
        elif cloud.look_at(Instance, instance.id).host == now:
            self._forget(server_id)  # it has no volume, and the ledger follows it

    def _is_sound(self, name: str) -> bool:
        row = self.cloud.folded.row("hosts", name)
        return row is not None and not (row["fenced"] or row["suspect"])

    def _fences(self, name: str) -> int:
        row = self.cloud.folded.row("hosts", name)
        return row["epoch"] if row else 0

    def _is_idle(self, instance: Instance) -> bool:
        """It runs, has no disk of a share's file, and no operation is on it or its volumes."""
        guest = self.cloud.states[str(instance.host)].read()["guests"].get(str(instance.id), {})
        runs = guest.get("live") is not None and not guest.get("job")
        idle = not (instance.claims or instance.resize_source or instance.deleted)
        volumes = [d.volume_id for d in instance.devices.values() if d.volume_id]
        free = all(not self.cloud.volume(id_).claims for id_ in volumes)
        return runs and idle and free and instance.power_state == "running"

    def _is_known(self, server_id: str, before: str, now: str) -> bool:
        """Both hosts tell what they have: until then nobody can know of it."""
        for _ in range(SHOWN_AFTER):
            instance = self.cloud.look_at(Instance, UUID(server_id))
            if instance.host == now or (now in instance.elsewhere and instance.is_unaccounted):
                return True
            self._tell(before, now)
        return False

    def _tell(self, *hosts: str) -> None:
        for agent in (self.cloud.agents[name] for name in hosts):
            if not agent.registering:
                agent.register_again()
            with suppress(Crash, ConflictError):
                agent.register()

    def _put_one_back(self) -> None:
        if self.moved:
            self._put_back(self.random.choice(sorted(self.moved)))

    def _put_back(self, server_id: str) -> None:
        """As it is now, unless its host was fenced there and let go of it; off, if its own host has
        lost what it had connected.
        """
        cloud, moved = self.cloud, self.moved[server_id]
        with cloud.states[moved.now].edit() as there:
            guest = there["guests"].pop(server_id, None)
        if guest is not None:
            lives = cloud.agents[moved.before].lives and self._is_sound(moved.before)
            with cloud.states[moved.before].edit() as here:
                if not lives or not moved.connected <= set(here["connected"]):
                    guest = {**guest, "live": None, "power_state": "shutdown"}
                here["guests"][server_id] = guest
        else:
            cloud.vanished.add(server_id)
        self._forget(server_id)
        cloud.note(f"hand: {server_id[:8]} is back on {moved.before}: {guest is not None}")
        for _ in range(SHOWN_AFTER):
            instance = cloud.look_at(Instance, UUID(server_id))
            if instance.host == moved.before and moved.now not in instance.elsewhere:
                return
            self._tell(moved.before, moved.now)

    def _bring_to_its_host(self, server_id: str) -> None:
        """A server without volumes is followed to where a host shows its guest; if that was of
        before the guest was put back, it is brought there.
        """
        instance, states = self.cloud.look_at(Instance, UUID(server_id)), self.cloud.states
        there = [name for name, state in states.items() if server_id in state.read()["guests"]]
        if len(there) != 1 or instance.host is None or there[0] in instance.places:
            return
        if instance.devices or not self._is_sound(there[0]):
            return
        claimants = [self.cloud.look_at(Operation, UUID(id_)) for id_ in instance.claims]
        if any(there[0] in plan_of(each).hosts.values() for each in claimants):
            return
        with states[there[0]].edit() as before, states[instance.host].edit() as now:
            now["guests"][server_id] = before["guests"].pop(server_id)
        self.cloud.note(f"hand: {server_id[:8]} is where the ledger has it, on {instance.host}")

    def pull(self, operation: Operation) -> None:
        """`virsh detach-disk` where a detach says that a guest still has it: the guest was put back
        with its disks, while the ledger worked where it was not.
        """
        server_id = operation.about().server_id
        for left in operation.left:
            if server_id in self.touched and _code(left) == "disk_still_plugged":
                self.cloud.note(f"hand: pulls {left['volume_id'][:8]} from {server_id[:8]}")
                for state in self.cloud.states.values():
                    with state.edit() as there:
                        _unplug(there["guests"].get(server_id, {}), left["volume_id"])

    def undefine_strangers(self) -> bool:
        """`virsh undefine` of guests that are off and belong to other hosts, or to nobody, which is
        told; a deletion waits for that.  Whether there was one.
        """
        kept = self.cloud.planted | self.cloud.apart
        of = set[str]()
        for name, state in self.cloud.states.items():
            with state.edit() as there:
                for server_id in [id_ for id_ in there["guests"] if id_ not in kept]:
                    instance = self.cloud.look_at(Instance, UUID(server_id))
                    at_work = {claim.flow for claim in instance.claims.values()} - {"delete"}
                    off = there["guests"][server_id]["live"] is None
                    if off and not at_work and name not in instance.places:
                        del there["guests"][server_id]
                        self.cloud.note(f"hand: {server_id[:8]} is undefined on {name}")
                        of.add(name)
        self._tell(*of)
        return bool(of)

    def _forget(self, server_id: str) -> None:
        self.moved.pop(server_id, None)
        self.cloud.by_hand.discard(server_id)

    def _copy(self) -> None:
        """Somebody restores a backup of a volume, whose metadata go with it."""
        cinder = self.cloud.cinder
        marks = [v.metadata for v in cinder.volumes.values() if MADE_FOR in v.metadata]
        if not marks or self.copies:
            return
        volume_id = str(uuid5(NAMESPACE_OID, f"copy {len(self.copies)}"))
        made = cinder.add_volume(volume_id=volume_id)
        made.metadata.update(self.random.choice(marks))
        self.copies.append(volume_id)
        self.cloud.apart.add(volume_id)
        self.cloud.happened["copy of a volume"] += 1
        self.cloud.note(f"hand: {volume_id[:8]} is a copy of what we made")

    def look_again(self) -> None:
        """A look at all hosts finds that what differed about moved guests does so no more."""
        cases = {id_of(drift_class, row) for row, drift_class in drift.cases(self.cloud)}
        for id_ in sorted(self.found - cases):
            unit = Unit(self.cloud.store)
            judge.miss(unit.get(Finding, id_), sight_of(self.cloud))
            unit.save(CONTEXT)

    def _look_and_repair(self) -> None:
        """Two looks see what differs about moved guests and copies; an operator has it repaired."""
        about = self.moved.keys() | set(self.copies)
        self.found |= self.repair(lambda row: bool(_ids(row) & about))

    def repair(self, about: Callable[[Row], bool]) -> set[str]:
        """Two looks see what differs about these; an operator has it repaired.  What they found."""
        found = list[Finding]()
        for _ in range(2):
            with suppress(Crash, ConflictError):
                found = [finding for _, finding in look(self.cloud, about)]
        for finding in found:
            if finding.state is not FindingState.CONFIRMED or finding.repairing:
                continue
            try:
                repair(self.cloud, finding)
                said = "accepted"
            except (errors.DomainError, PortError, Crash, ConflictError) as refusal:
                said = type(refusal).__name__
            assert finding.found is not None
            self.cloud.note(f"operator: repair {finding.found.drift_class}: {said}")
        return {str(finding.id) for finding in found}


def _code(left: dict[str, Any]) -> str:
    return str((left["error"] or {}).get("code"))


def _unplug(guest: dict[str, Any], volume_id: str) -> None:
    for each in ("live", "persistent"):
        if guest.get(each):
            disks = disk_xml.parse(guest[each]).disks
            for disk in [disk for disk in disks if disk.serial == volume_id]:
                guest[each] = host_state.without_disk(guest[each], disk.target)


def _ids(row: Row) -> set[str | None]:
    return {row.about.server_id, row.about.volume_id}
