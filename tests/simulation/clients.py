"""What users, operators' tools and Cinder ask for, by chance; and that they ask again.

Most requests make sense for the server as it is; some do not, and must be refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from aggregates import errors
from aggregates.instance import Instance, VmState
from aggregates.operation import Operation
from aggregates.volume import LETTING_GO
from handlers.requests.accept import AttachVolume, DetachVolume, SwapVolume
from handlers.requests.actions import RULES, ActOnServer
from handlers.requests.build import BootDisk, BuildServer
from host_agent.shared.contract.ports import PortError
from ledger.core.requests import Accepted
from ledger.log.application import ConflictError
from ledger.trial.cinder.model import migration as cinder_migration
from ledger.trial.cinder.model.rows import DEFAULT_PROJECT
from tests.memory import Crash
from tests.world import CONTEXT, IMAGE

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

S = VmState
#: How often somebody who got no answer asks again.
ATTEMPTS_MAX = 3
#: How often a server that lets go of a shared volume together with others is deleted for it.
DELETED_TOGETHER = 0.3
#: And how often another server wants it at that very moment.
TAKEN_BESIDE = 0.5
#: What is sensible in which state, some of it more often.
SENSIBLE = {
    S.ACTIVE: [
        *("attach",) * 6,
        *("detach",) * 3,
        *("swap", "swap", "live_migrate", "live_migrate", "resize", "shelve"),
        *("stop", "pause", "reboot", "refresh", "rebuild", "reimage", "delete"),
    ],
    S.PAUSED: ["unpause", "unpause", "live_migrate", "attach", "detach", "shelve"],
    S.STOPPED: [
        *("start", "start", "start", "attach", "attach", "detach", "detach_root", "attach_root"),
        *("resize", "shelve", "refresh", "reboot", "rebuild", "reimage"),
    ],
    S.RESIZED: ["confirm_resize", "revert_resize", "delete"],
    S.SHELVED_OFFLOADED: [
        *("unshelve",) * 3,
        *("attach", "detach", "detach_root", "attach_root"),
    ],
    S.ERROR: ["delete", "stop", "start", "reboot", "attach", "attach", "detach"],
}
#: A deletion is never refused, and what is at work shall mostly end otherwise.
SPARED_AT_WORK = 0.8
WHATEVER = ["attach", "detach", "swap", "delete", "detach_root", "attach_root", *RULES]


@dataclass
class Asked:
    """A request until it is answered."""

    what: str
    call: Callable[[], Accepted]
    unmet: Callable[[], object] = lambda: None  # what the asker does when it is refused
    attempts: int = 0


class Clients:
    """Everybody who asks for something."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.random = cloud.chance.random
        self.unanswered: list[Asked] = []
        self.refused: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self._asked = 0

    # ---------------------------------------------------------------- asking

    def ask_something(self) -> None:
        if self.unanswered and self.random.random() < 0.5:
            self.answer(self.unanswered.pop(0))
            return
        servers = self.cloud.known_servers()
        if not servers or self.random.random() < 0.07:
            self.build()
            return
        instance = self.random.choice(servers)
        self.ask_for(self._choice(instance), instance)

    def _choice(self, instance: Instance) -> str:
        host = instance.host and self.cloud.folded.row("hosts", instance.host)
        if host and host["fenced"] and self.random.random() < 0.7:
            return "evacuate"
        sensible = SENSIBLE.get(instance.vm_state)
        if sensible and self.random.random() < 0.9:
            return self.random.choice(sensible)
        return self.random.choice(WHATEVER)

    def ask_for(self, what: str, instance: Instance) -> None:
        server_id = str(instance.id)
        asks: dict[str, Callable[[], None]] = {
            "attach": lambda: self.attach(server_id),
            "attach_root": lambda: self.attach(server_id, is_root=True),
            "detach": lambda: self.detach(instance),
            "detach_root": lambda: self.detach(instance, root=True),
            "swap": lambda: self.swap(instance),
            "delete": lambda: self.delete(server_id),
        }
        if what == "delete" and instance.claims and self.random.random() < SPARED_AT_WORK:
            return
        if what in asks:
            asks[what]()
        else:
            self.act(what, instance)

    def _key(self) -> str:
        self._asked += 1
        return f"request {self._asked}"

    def ask(self, what: str, call: Callable[[str], Accepted], **more: Any) -> None:
        key = self._key()
        self.answer(Asked(what, lambda: call(key), **more))

    def answer(self, asked: Asked) -> None:
        """Ask; whoever gets no answer asks again later, or never."""
        asked.attempts += 1
        try:
            accepted = asked.call()
        except (Crash, PortError, ConflictError) as trouble:
            self.cloud.note(f"client: {asked.what}: no answer ({type(trouble).__name__})")
            if asked.attempts < ATTEMPTS_MAX:
                self.unanswered.append(asked)
            else:
                asked.unmet()
            return
        except errors.IllegalTransitionError:
            raise
        except errors.DomainError as refusal:
            self._check_refusal(asked, refusal)
            self.refused[refusal.code] += 1
            self.cloud.note(f"client: {asked.what}: {refusal.code}")
            asked.unmet()
            return
        self.accepted[asked.what.split()[0]] += 1
        self.cloud.note(f"client: {asked.what}: accepted [{accepted.operation_id[:8]}]")

    def _check_refusal(self, asked: Asked, refusal: errors.DomainError) -> None:
        """Whoever is told that an operation is in the way can look at it; and who lets a shared
        volume go is never in the way of another server that lets it go (decision 0042).
        """
        if not isinstance(refusal, errors.ClaimedError):
            return
        operation = self.cloud.store.load(Operation, UUID(refusal.fields["operation_id"]))
        assert operation.started is not None, str(refusal)
        flows = {asked.what.split()[0], operation.started.flow}
        shared = refusal.fields["what"] == "Volume" and self.cloud.is_shared(refusal.fields["id"])
        another = operation.started.server_id[:8] not in asked.what
        if shared and another and flows <= LETTING_GO:
            raise AssertionError(f"{asked.what} is refused: {refusal}")

    # ------------------------------------------------------------- requests

    def attach(
        self, server_id: str, *, is_root: bool = False, volume_id: str | None = None
    ) -> None:
        draw, known = self.random, self.cloud.known_volumes()
        volumes = sorted(known)
        free = [v for v in volumes if known[v].status == "available"]
        shared = [v for v in volumes if known[v].multiattach]
        among = draw.choice([free, free, shared, volumes]) or volumes
        volume_id = volume_id or draw.choice(among)
        request = AttachVolume(
            server_id=server_id,
            volume_id=volume_id,
            is_root=is_root,
            device=draw.choice([None, None, "/dev/vdf", "/dev/sdc"]),
            delete_on_termination=draw.random() < 0.2,
            tag=self.cloud.hostile.text("disk") if draw.random() < 0.2 else None,
        )
        if not self.cloud.hostile.is_let_in(tag=request.tag):
            return
        requests, fleet = self.cloud.requests, self.cloud.fleet
        what = f"attach {volume_id[:8]} {server_id[:8]} root={is_root}"
        self.ask(what, lambda key: requests.attach(request, CONTEXT, fleet, key))

    def detach(
        self, instance: Instance, *, root: bool = False, volume_id: str | None = None
    ) -> None:
        volume_id = volume_id or self._volume_of(instance, root=root)
        request = DetachVolume(server_id=str(instance.id), volume_id=volume_id, root_allowed=root)
        requests, fleet = self.cloud.requests, self.cloud.fleet
        what = f"detach {volume_id[:8]} {request.server_id[:8]}"
        self.ask(what, lambda key: requests.detach(request, CONTEXT, fleet, key))

    def let_go_together(self) -> None:
        """Some of the servers that share a volume detach it, or are deleted, at the same time."""
        shared = [v.id for v in self.cloud.known_volumes().values() if v.multiattach]
        holders = {id_: set(self.cloud.volume(id_).holders.values()) for id_ in sorted(shared)}
        among = [id_ for id_, servers in holders.items() if len(servers) > 1]
        if not among:
            self._share(shared)
            return
        volume_id = self.random.choice(among)
        servers = {str(instance.id): instance for instance in self.cloud.known_servers()}
        others = sorted(servers.keys() - holders[volume_id])
        if others and self.random.random() < TAKEN_BESIDE:
            # On the same host, if there is one: who lets go there asks who else has the volume.
            hosts = {servers[id_].host for id_ in holders[volume_id] & servers.keys()}
            near = [id_ for id_ in others if servers[id_].host in hosts]
            wants = self.random.choice(near or others)
            self.attach(wants, volume_id=volume_id)
            self.cloud.doomed.add(servers[wants].host or "")
        for server_id in sorted(holders[volume_id] & servers.keys()):
            if self.random.random() < DELETED_TOGETHER:
                self.delete(server_id)
            else:
                self.detach(servers[server_id], volume_id=volume_id)

    def _share(self, volumes: list[str]) -> None:
        """Two servers want one volume: there will be something to let go of together."""
        servers = self.cloud.known_servers()
        if volumes and servers:
            volume_id = self.random.choice(volumes)
            for instance in self.random.sample(servers, min(2, len(servers))):
                self.attach(str(instance.id), volume_id=volume_id)

    def _volume_of(self, instance: Instance, *, root: bool = False) -> str:
        mappings = [m for m in self.cloud.mappings() if m.server_id == str(instance.id)]
        own = [m.volume_id for m in mappings if m.volume_id and (not root or m.boot_index == 0)]
        return self.random.choice(sorted(own) or sorted(self.cloud.known_volumes()))

    def swap(self, instance: Instance) -> None:
        volumes = self.cloud.known_volumes()
        free = sorted(v for v in volumes if volumes[v].status == "available")
        old, new = self._volume_of(instance), self.random.choice(free or sorted(volumes))
        self._swap(SwapVolume(server_id=str(instance.id), volume_id=old, new_volume_id=new))

    def _swap(self, request: SwapVolume, **more: Any) -> None:
        self.answer(self._swapping(request, **more))

    def _swapping(self, request: SwapVolume, **more: Any) -> Asked:
        requests, fleet, key = self.cloud.requests, self.cloud.fleet, self._key()
        what = f"swap {request.volume_id[:8]} {request.new_volume_id[:8]} {request.server_id[:8]}"
        return Asked(what, lambda: requests.swap(request, CONTEXT, fleet, key), **more)

    def cinder_migrates_something(self) -> None:
        """Of any server, whatever is being done to it."""
        if servers := self.cloud.known_servers():
            self.cinder_migrates(self.random.choice(servers))

    def cinder_migrates(self, instance: Instance) -> None:
        """An administrator moves a volume to another backend, or retypes it; Cinder asks us to
        copy it, at once or when it has made the target.
        """
        model = self.cloud.cinder
        volume = model.volumes.get(self._volume_of(instance))
        if volume is None:  # one that has just become another
            return
        here = {volume.backend, volume.volume_type}  # which may differ after a migration
        others = [backend for backend in model.backends.values() if backend.name not in here]
        if volume.status != "in-use" or volume.multiattach or volume.migrating:
            return
        if model.has_snapshots(volume.id):
            return
        to = self.random.choice(others)
        wanted = {"host": to.host, "new_type": to.name, "migration_policy": "on-demand"}
        how = self.random.choice([cinder_migration.migrate, cinder_migration.retype])
        target = how(model, volume, wanted)
        assert target is not None, "it goes to another backend"
        request = SwapVolume(
            server_id=str(instance.id),
            volume_id=volume.id,
            new_volume_id=target.id,
            by_cinder=True,
        )
        self.cloud.note(f"cinder: {how.__name__} {volume.id[:8]} to {target.id[:8]}")
        more = {"unmet": lambda: cinder_migration.fail(model, volume, target)}
        if self.random.random() < 0.5:
            self._swap(request, **more)
        else:
            self.unanswered.append(self._swapping(request, **more))

    def act(self, flow: str, instance: Instance) -> None:
        draw, cloud = self.random, self.cloud
        alive = [name for name in cloud.agents if cloud.agents[name].lives]
        elsewhere = [name for name in alive if name != instance.host]
        request = ActOnServer(
            server_id=str(instance.id),
            flow=flow,
            destination=draw.choice(draw.choice([elsewhere, alive]) or list(cloud.agents)),
            memory_mb=draw.choice([None, 1024]) if flow == "resize" else None,
            image=IMAGE if flow == "reimage" else None,
        )
        fleet = cloud.fleet
        what = f"{flow} {request.server_id[:8]} {request.destination}"
        self.ask(what, lambda key: cloud.requests.act(request, CONTEXT, fleet, key))

    def delete(self, server_id: str) -> None:
        requests, fleet = self.cloud.requests, self.cloud.fleet
        what = f"delete {server_id[:8]}"
        self.ask(what, lambda key: requests.delete(server_id, CONTEXT, fleet, key))

    def build(self) -> None:
        draw, cloud = self.random, self.cloud
        free = sorted(v.id for v in cloud.known_volumes().values() if v.status == "available")
        chosen = draw.sample(free, min(len(free), draw.randint(0, 2)))
        disks = [BootDisk(volume_id=id_, boot_index=n) for n, id_ in enumerate(chosen)]
        if draw.random() < 0.4:
            gone = draw.random() < 0.5
            disks.append(BootDisk(create={"size_gb": 1}, delete_on_termination=gone))
        request = BuildServer(
            name=cloud.hostile.text("built"),
            host=draw.choice(sorted(cloud.agents)),
            disks=tuple(disks),
            project_id=DEFAULT_PROJECT,
        )
        if not cloud.hostile.is_let_in(name=request.name):
            return
        fleet = cloud.fleet
        what = f"build {request.host} {[d.volume_id and d.volume_id[:8] for d in disks]}"
        self.ask(what, lambda key: cloud.requests.build(request, CONTEXT, fleet, key))
