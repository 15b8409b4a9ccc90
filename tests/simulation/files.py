"""Volumes that are files on a share: what guests write to them, and Cinder's snapshots of them.

Its draws are its own, and it is there in a share of the seeds only: what the others did, they do.
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from aggregates import errors
from aggregates.instance import Instance, VmState
from aggregates.operation import Operation
from handlers.requests.actions import ActOnServer
from handlers.requests.snapshots import SnapshotInUse
from host_agent.libvirt import disk_xml
from host_agent.shared.contract.messages import PowerState, Verb
from host_agent.shared.contract.ports import PortError
from host_agent.shared.faults import Faults
from host_agent.simulated.adapters import SimulatedBrick
from host_agent.simulated.host_state import HostState, release, set_power
from ledger.log.application import ConflictError
from ledger.trial.cinder.model import snapshots as cinder_snapshots
from ledger.trial.cinder.model.rows import Snapshot, StoredVolume
from tests.memory import Crash
from tests.simulation.share import Share
from tests.world import CONTEXT

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

#: In how many seeds there are such volumes, and how many of their volumes are.
SEEDS, VOLUMES = 0.5, 0.75
BACKEND = "nfs"
#: How often something happens here beside what else happens, and how often which.
RATE = 0.25
#: How often a snapshot is of a volume whose guest can take part; else of any.
SENSIBLE = 0.85
#: How often a job on files takes until somebody lets it end; and what happens when an agent looks
#: at it: the agent is killed, or others do something, or the job ends.
HELD = 0.5
KILLED, ENDS = 0.2, 0.6
#: Cinder looks every ten seconds at what it was told, and gives up after minutes or hours.
GIVES_UP = 0.02
SNAPSHOTS_MAX = 4
#: Where simulated hosts have the share.
MOUNT = "/simulated/mnt"
#: The length of the path of a volume's own file, by which those of its snapshots begin.
FIRST = len(f"{MOUNT}/volume-") + 36
RUNNING = frozenset({VmState.ACTIVE, VmState.PAUSED})
_WAITING = frozenset({"creating", "deleting"})


class Files:
    """Cinder's driver, its users, and the guests that write."""

    def __init__(self, cloud: Cloud, seed: int) -> None:
        self._cloud = cloud
        self.random = random.Random(f"files {seed}")
        self.here = self.random.random() < SEEDS
        self.share = Share()
        self._written: dict[str, set[int]] = {}  # by the path of a volume's first file
        self._told_until, self._cut_off = 0, set[str]()  # see _never_followed
        self._writes = 0

    def backend(self, drawn: str) -> str:
        return BACKEND if self.here and self.random.random() < VOLUMES else drawn

    # ---------------------------------------------------------------------- storm

    def perhaps(self) -> None:
        """Something happens to files, or nothing."""
        if not self.here or self.random.random() >= RATE:
            return
        deeds: list[tuple[Callable[[], object], float]] = [
            (self._write_something, 3),
            (self._ask_something, 4),
            (self._look, 2),
            (self._let_jobs_end, 0.3),
        ]
        actions, weights = zip(*deeds, strict=True)
        self.random.choices(actions, weights)[0]()

    def _write_something(self) -> None:
        guests = list(self.open())
        if guests:
            self._write(*self.random.choice(guests))

    def _write(self, volume: StoredVolume, path: str) -> None:
        self._writes += 1
        self.share.write(path, self._writes)
        self._written.setdefault(_first(volume), set()).add(self._writes)

    def _ask_something(self) -> None:
        free = sorted(filter(self._is_free, self.volumes()), key=lambda each: each.id)
        fit = [v for v in free if self._can_take_part(v)]
        among = fit if fit and self.random.random() < SENSIBLE else free
        if not among:
            return
        volume = self.random.choice(among)
        found = self._snapshots(volume)
        if found and (len(found) >= SNAPSHOTS_MAX or self.random.random() < 0.5):
            self.delete(self.random.choice(found))
        else:
            self._take(volume)

    def volumes(self) -> list[StoredVolume]:
        volumes = self._cloud.known_volumes().values()
        return [v for v in volumes if v.driver == BACKEND and not v.migration_status]

    def _is_free(self, volume: StoredVolume) -> bool:
        """Whether Cinder would begin; one at a time, for its driver has a lock on each volume."""
        waiting = any(row.status in _WAITING for row in self._snapshots(volume))
        return volume.status in {"available", "in-use"} and not volume.migrating and not waiting

    def _can_take_part(self, volume: StoredVolume) -> bool:
        """Whether a guest runs with it, and nothing else is done to it."""
        if volume.status != "in-use" or volume.encrypted or volume.multiattach:
            return False
        return any(
            each.vm_state in RUNNING and not each.claims and each.device_of(volume.id)
            for each in self._cloud.known_servers()
        )

    def _snapshots(self, volume: StoredVolume) -> list[Snapshot]:
        return [r for r in self._cloud.cinder.snapshots.values() if r.volume_id == volume.id]

    def _take(self, volume: StoredVolume) -> None:
        model = self._cloud.cinder
        made = cinder_snapshots.begin_online(model, volume.id)
        active = cinder_snapshots.chain_of(model, volume)[-1]
        self.share.below[_path(made.file)] = _path(active)
        if volume.status == "available":
            cinder_snapshots.go_on(model, made)
        else:
            self._ask("snapshot", made, {"file": made.file})

    def delete(self, snapshot: Snapshot) -> None:
        model = self._cloud.cinder
        volume = model.volume(snapshot.volume_id)
        if snapshot.status == "error":  # the driver knows no such snapshot
            del model.snapshots[snapshot.id]
        elif volume.status == "available":
            self._remove(cinder_snapshots.forget(model, snapshot), volume)
        else:
            files = cinder_snapshots.begin_online_deletion(model, snapshot)
            self._ask("delete_snapshot", snapshot, files)

    def _remove(self, file: str | None, volume: StoredVolume) -> None:
        """Cinder deletes a file; of a volume that nobody has, it merges it itself (qemu-img)."""
        path = _path(file)
        if volume.status == "available":
            below = {
                p: self.share.below.get(path) if b == path else b
                for p, b in self.share.below.items()
            }
            self.share.change({p: b for p, b in below.items() if b is not None})
        self.share.deleted.add(path)

    def _ask(self, flow: str, snapshot: Snapshot, files: dict[str, str | None]) -> None:
        """Cinder's driver calls; by whatever is no answer it gives up."""
        cloud, what = self._cloud, f"{flow} {snapshot.id[:8]} of {snapshot.volume_id[:8]}"
        request = SnapshotInUse(
            flow=flow, volume_id=snapshot.volume_id, snapshot_id=snapshot.id, files=files
        )
        try:
            accepted = cloud.requests.snapshot(request, CONTEXT, cloud.fleet)
        except errors.IllegalTransitionError:
            raise
        except (Crash, PortError, ConflictError, errors.DomainError) as refusal:
            cloud.note(f"cinder: {what}: {getattr(refusal, 'code', type(refusal).__name__)}")
            self._give_up(snapshot)
        else:
            cloud.note(f"cinder: {what}: accepted [{accepted.operation_id[:8]}]")

    def _give_up(self, snapshot: Snapshot) -> None:
        """Unless it knows by now that all is well."""
        if snapshot.status in _WAITING:
            snapshot.status = {"creating": "error", "deleting": "error_deleting"}[snapshot.status]

    def _look(self) -> None:
        """Cinder looks at what it was told; or has waited for long enough."""
        for snapshot in list(self._cloud.cinder.snapshots.values()):
            if cinder_snapshots.is_heard(snapshot):
                self._go_on(snapshot)
            elif snapshot.status in _WAITING and self.random.random() < GIVES_UP:
                self._cloud.note(f"cinder: gives up {snapshot.id[:8]}, {snapshot.status}")
                self._give_up(snapshot)

    def _go_on(self, snapshot: Snapshot) -> None:
        cloud, was = self._cloud, snapshot.status
        cloud.note(f"cinder: goes on with {snapshot.id[:8]}, {was}")
        file = cinder_snapshots.go_on(cloud.cinder, snapshot)
        if was == "deleting":
            self.share.deleted.add(_path(file))

    def _let_jobs_end(self) -> None:
        """QEMU's, whoever began them."""
        for state in self._cloud.states.values():
            for server_id, guest in state.seen()["guests"].items():
                runs = guest["live"] is not None and not guest.get("job")
                if runs and (guest.get("merges") or "<mirror" in guest["live"]):
                    release(state, server_id)

    def takes_long(self) -> bool:
        """Whether a job on files goes on until it is let end."""
        return self.random.random() < HELD

    def while_a_job_lasts(self, state: HostState, server_id: str) -> None:
        """An agent looks at it: perhaps it dies, others do something, or the job ends."""
        chance, drawn = self._cloud.chance, self.random.random()
        if chance.calm or drawn >= 1 - ENDS:
            release(state, server_id)
        elif drawn < KILLED:
            raise Crash
        else:
            chance.let_others()

    def go_on(self) -> bool:
        """In the calm: jobs end, and Cinder looks; whether it had heard anything."""
        self._let_jobs_end()
        rebooted = False
        for operation in self._cloud.operations("parked"):
            self._start_by_hand(operation)
            rebooted = self._reboot_instead(operation) or rebooted
        heard = [s for s in self._cloud.cinder.snapshots.values() if cinder_snapshots.is_heard(s)]
        for snapshot in heard:
            self._go_on(snapshot)
        return rebooted or bool(heard)

    def _reboot_instead(self, operation: Operation) -> bool:
        """What its text says where a fence was believed, and the guest ran on with the former file
        (decision 0078); whether that was so.
        """
        started = operation.started
        codes = {(each["error"] or {}).get("code") for each in operation.left}
        if codes != {"refresh_needs_stop"} or started is None:
            return False
        cloud = self._cloud
        cloud.service.act(str(operation.id), "give_up", "as it says", CONTEXT)
        reboot = ActOnServer(server_id=started.server_id, flow="reboot")
        cloud.requests.act(reboot, CONTEXT, cloud.fleet, None)
        cloud.note(f"operator: gives [{str(operation.id)[:8]}] up, and reboots")
        return True

    def _start_by_hand(self, operation: Operation) -> None:
        """What an operator does where a guest lost its power before its snapshot was taken back:
        the new file has what it wrote last, and only a guest that runs can take that back.
        """
        started = operation.started
        left = [each for each in operation.left if each["verb"] == Verb.DISK_SNAPSHOT_REVERT]
        off = left and (left[0]["error"] or {}).get("code") == "guest_not_running"
        if not off or started is None:
            return
        cloud, server_id = self._cloud, started.server_id
        name = cloud.store.load(Instance, UUID(server_id)).host or ""
        state = cloud.states[name]
        if state.read()["guests"][server_id]["live"] is not None:
            return
        cloud.note(f"operator: starts {server_id[:8]} on {name} as it is defined")
        self._connect(name, server_id)
        set_power(state, server_id, PowerState.RUNNING)

    def _connect(self, host: str, server_id: str) -> None:
        """All that the host has records of for it; files by the names in the definition."""
        state, records = self._cloud.states[host], self._cloud.records[host].values()
        brick = SimulatedBrick(state, Faults(), host)
        for record in records:
            for info in record.infos if record.server_id == server_id else ():
                brick.connect(info)
        with state.edit() as changed:
            disks = disk_xml.parse(changed["guests"][server_id]["persistent"]).disks
            defined = [disk_xml.short(disk.place) or "" for disk in disks if disk.is_volume]
            for entry in changed["connected"].values():
                first = entry["path"][:FIRST] if entry["path"].startswith(MOUNT) else None
                entry["path"] = next((p for p in defined if p[:FIRST] == first), entry["path"])

    # ----------------------------------------------------------------------- looking

    def open(self) -> Iterator[tuple[StoredVolume, str]]:
        """Volumes with the file that a running guest writes to, as far as it can."""
        cloud = self._cloud
        by_file = {_first(volume): volume for volume in self.volumes()}
        for name, state in cloud.states.items():
            for server_id, guest in state.seen()["guests"].items():
                if guest["live"] is None or guest.get("stranded"):
                    continue
                if server_id in cloud.isolated.get(name, set()) | cloud.apart:
                    continue
                for path in _sources(guest["live"]):
                    if volume := by_file.get(path[:FIRST]):
                        yield volume, path

    def connected(self, ids: set[str], entries: Iterable[dict[str, Any]]) -> set[str]:
        """The files of these volumes that a host has connected: by any name, for it is the share
        that is connected, and its guest may be ahead of Cinder, or behind it.
        """
        files = {_first(volume) for volume in self.volumes() if volume.id in ids}
        return {e["path"] for e in entries if (e["path"] or "")[:FIRST] in files}

    def behind(self, host: str) -> set[str]:
        """Attachments of files whose definition and record here may name the former file: no guest
        runs with it, or a fence has ended the snapshot before the host followed.  Whoever starts
        the guest goes by what Cinder tells (decision 0078).
        """
        if not self.here:
            return set()
        cloud, running = self._cloud, self._cloud.live_guests(host)
        fenced, ids = self._never_followed(), {volume.id for volume in self.volumes()}
        return {
            row.id
            for row in cloud.cinder.attachments.values()
            if row.host == host and row.volume_id in ids
            if row.instance not in running or row.volume_id in fenced
        }

    def on_former_files(self) -> Iterator[Instance]:
        """Servers whose guests a fence only cut off while a snapshot was taken: they write on to
        the former file until they are rebooted (CHANGELOG, Known gaps).
        """
        volumes = [each for each in self.volumes() if each.id in self._never_followed()]
        for instance in self._cloud.known_servers() if self.here else ():
            for volume in volumes:
                file = cinder_snapshots.chain_of(self._cloud.cinder, volume)[-1]
                if any(self._differing(instance, volume, _path(file))):
                    yield instance
                    break

    def _never_followed(self) -> set[str]:
        """Volumes whose snapshot a fence has ended; the log only grows."""
        log = self._cloud.store.log
        for event, _ in log[self._told_until :]:
            waived = isinstance(event, Operation.StepSucceeded) and "waived" in event.outputs
            if waived and event.step == "follow":
                operation = self._cloud.store.load(Operation, event.originator_id)
                self._cut_off |= {lane.volume_id for lane in operation.lanes}
        self._told_until = len(log)
        return self._cut_off

    def broken(self) -> Iterator[str]:
        """What guests have written they can read, and no file that they use is deleted."""
        if not self.here:
            return
        for volume, path in self.open():
            if gone := self.share.deleted & set(self.share.chain(path)):
                yield f"{volume.id} is open with {gone}, which Cinder has deleted"
            if lost := self._written.get(_first(volume), set()) - self.share.read(path):
                yield f"{volume.id} has lost {sorted(lost)[:3]} in {self.share.chain(path)}"

    def broken_at_rest(self) -> Iterator[str]:
        """The same of what Cinder names; and Cinder, records, definitions and guests name the
        same file.
        """
        if not self.here:
            return
        model = self._cloud.cinder
        yield from self.broken()
        for row in model.snapshots.values():
            if row.status in _WAITING:
                yield f"snapshot {row.id} is still {row.status}"
        for volume in self.volumes():
            chain = [_path(file) for file in cinder_snapshots.chain_of(model, volume)]
            has = self.share.chain(chain[-1])
            if gone := self.share.deleted & set(has):
                yield f"{volume.id} needs {gone}, which Cinder has deleted"
            if lost := self._written.get(_first(volume), set()) - self.share.read(chain[-1]):
                yield f"{volume.id} has lost {sorted(lost)[:3]} in {has}"
            if wrong := [path for path in has if path not in chain]:
                yield f"{volume.id} has {has}, Cinder {chain}: {wrong}"
            yield from self._named(volume, chain[-1])

    def _named(self, volume: StoredVolume, path: str) -> Iterator[str]:
        cloud = self._cloud
        for row in cloud.cinder.attachments_of(volume.id):
            named = row.connection_info.get("name")
            if named is None or row.id in cloud.strays:  # of a stray no host is told
                continue
            if _path(named) != path:
                yield f"attachment {row.id} names {named}, and Cinder writes to {path}"
        for name in cloud.states:
            behind = self.behind(name)
            for id_, record in cloud.records[name].items():
                if id_ in behind | cloud.planted:
                    continue
                told = {_path(info["name"]) for info in record.infos if info.get("export")}
                if record.volume_id == volume.id and told - {path}:
                    yield f"{name} keeps {told} of {volume.id}, and Cinder writes to {path}"
        for instance in cloud.known_servers():
            yield from self._differing(instance, volume, path)

    def _differing(self, instance: Instance, volume: StoredVolume, path: str) -> Iterator[str]:
        state = self._cloud.states.get(instance.host or "")
        device = instance.device_of(volume.id)
        guest = state.seen()["guests"].get(str(instance.id)) if state else None
        if guest is None or device is None or guest["live"] is None:
            return
        for copy in ("live", "persistent"):
            disk = disk_xml.parse(guest[copy]).disk_of(device.serial or "") if guest[copy] else None
            if disk is not None and disk_xml.short(disk.place) != path:
                told = disk_xml.short(disk.place)
                yield f"{instance.id} has {told} ({copy}), and Cinder writes to {path}"

    # ------------------------------------------------------------------------- after

    def deletable(self) -> Iterator[Callable[[], None]]:
        """The deletion of one snapshot of each volume that a guest runs with.

        Those that Cinder gave up go first, the oldest of them before: its file may be merged.
        """
        for volume in self.volumes() if self.here else ():
            self._correct(volume)
            found = [row for row in self._snapshots(volume) if row.status != "error"]
            again = [row for row in found if row.status == "error_deleting"]
            if found and self._can_take_part(volume):
                yield partial(self.delete, again[0] if again else self.random.choice(found))

    def _correct(self, volume: StoredVolume) -> None:
        """An administrator lets Cinder know of a deletion that it gave up, and which was done, if
        there was another snapshot since: asked again, it would want another merge.
        """
        model, files = self._cloud.cinder, self.share
        for row in self._snapshots(volume):
            chain = [_path(file) for file in cinder_snapshots.chain_of(model, volume)]
            has = files.chain(chain[-1])
            if row.status != "error_deleting" or _path(row.file) not in has:
                continue
            if chain[chain.index(_path(row.file)) - 1] not in has:
                file = cinder_snapshots.forget(model, row, pulled=True)
                files.deleted.add(_path(file))


def _path(file: Any) -> str:
    return posixpath.join(MOUNT, str(file))


@lru_cache(maxsize=1000)
def _sources(domain: str) -> tuple[str, ...]:
    return tuple(disk_xml.short(disk.place) or "" for disk in disk_xml.parse(domain).disks)


def _first(volume: StoredVolume) -> str:
    return f"{MOUNT}/volume-{volume.name_id or volume.id}"
