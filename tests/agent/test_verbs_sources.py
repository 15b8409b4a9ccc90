"""No verb takes a disk from a guest, or ends what is connected, that is on something else."""

from __future__ import annotations

import uuid
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from host_agent.libvirt import disk_xml
from host_agent.shared.contract.lane import Lane, LaneSide
from host_agent.shared.contract.messages import ErrorKind, GuestOrder, PowerState, Verb
from host_agent.shared.contract.ports import ConnectionInfo, OtherVolumeError, PortError
from host_agent.shared.contract.survey import UnlabelledShown
from host_agent.simulated.adapters import SimulatedBrick
from host_agent.simulated.host_state import set_power
from host_agent.storage.kernel import KernelStorage
from tests.agent.bench import ATTACH, DETACH, Bench
from tests.agent.kernel_tree import Kernel

WWID = "6001405aaaaaaaaaaaaaaaaaaaaaaaaa"
STRAY = "/simulated/mnt/stray.qcow2"


@pytest.fixture(params=["nfs", "rbd", "iscsi"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(driver=request.param)


def put_above(bench: Bench, lane: Lane, path: str = STRAY) -> None:
    """`virsh snapshot-create --disk-only`: the guest writes to a file that nobody knows."""
    with bench.store.edit() as state:
        guest = state["guests"][lane.server_id]
        for copy in ("live", "persistent"):
            root = ET.fromstring(guest[copy])
            for disk in root.iterfind("devices/disk"):
                if disk.findtext("serial") == lane.disk_serial:
                    disk_xml.set_source(disk, {"type": "file", "path": path})
            guest[copy] = ET.tostring(root, encoding="unicode")


def unlabel(bench: Bench, lane: Lane) -> str:
    """The disk is there without our label; where its data is."""
    with bench.store.edit() as state:
        guest = state["guests"][lane.server_id]
        for copy in ("live", "persistent"):
            root = ET.fromstring(guest[copy])
            for disk in root.iterfind("devices/disk"):
                for node in (*disk.findall("serial"), *disk.findall("alias")):
                    disk.remove(node)
            guest[copy] = ET.tostring(root, encoding="unicode")
        disks = disk_xml.parse(guest["live"]).disks
    return next(source for disk in disks if (source := disk_xml.short(disk.place)))


def order(bench: Bench, verb: Verb, lane: Lane) -> None:
    destination = {"host": "compute-2", "uri": "simulated:compute-2"}
    other = LaneSide(host="compute-2")
    disk = {"type": "file", "path": STRAY, "format": "raw"}
    there = replace(lane, other=other, disk=disk)
    there.disk.update(discard=False, readonly=False)  # type: ignore[union-attr]
    what = GuestOrder(
        server_id=lane.server_id,
        lanes=(there,),
        running=True,
        definition="<domain/>",
        destination=destination,
    )
    bench.order(verb, what)


ACTS: dict[str, Callable[[Bench, Lane], object]] = {
    "unplug": lambda bench, lane: bench.run(lane, Verb.DISK_UNPLUG),
    "connect": lambda bench, lane: bench.run(lane, Verb.VOLUME_CONNECT),
    "replace": lambda bench, lane: bench.run(lane, Verb.DISK_REPLACE),
    "refresh": lambda bench, lane: bench.run(lane, Verb.ATTACHMENT_REFRESH),
    "spawn": lambda bench, lane: order(bench, Verb.GUEST_SPAWN, lane),
    "stop for a move": lambda bench, lane: order(bench, Verb.GUEST_STOP, lane),
    "remove": lambda bench, lane: order(bench, Verb.GUEST_REMOVE, lane),
    "migrate": lambda bench, lane: order(bench, Verb.GUEST_MIGRATE, lane),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("power", [PowerState.RUNNING, PowerState.SHUTDOWN])
def test_what_is_on_another_file_is_refused_before_anything_is_changed(
    bench: Bench, act: str, power: PowerState
) -> None:
    lane = bench.attached()
    put_above(bench, lane)
    set_power(bench.store, lane.server_id, power)
    before, records = bench.store.read(), dict(bench.records)
    with pytest.raises(PortError, match="blockcommit") as error:
        ACTS[act](bench, lane)
    assert (error.value.kind, error.value.code) == (ErrorKind.FINAL, "other_source")
    assert STRAY in error.value.message
    assert bench.store.read() == before
    assert bench.records == records


def test_a_guest_that_writes_elsewhere_can_be_stopped_for_itself(bench: Bench) -> None:
    lane = bench.attached()
    put_above(bench, lane)
    bench.order(Verb.GUEST_STOP, GuestOrder(server_id=lane.server_id, lanes=(lane,)))
    assert bench.store.read()["guests"][lane.server_id]["live"] is None


class ByUdev(SimulatedBrick):
    """os-brick where udev names what is connected: a guest gets it by that name."""

    def __init__(self, bench: Bench, path: str) -> None:
        super().__init__(bench.store, bench.faults, bench.host)
        self._path = path

    def connect(self, info: ConnectionInfo) -> dict[str, Any]:
        return {**super().connect(info), "path": self._path, "device": {"path": self._path}}


def refreshed(kernel: Kernel, has: str, path: str, driver: str = "iscsi") -> Bench:
    """A running guest that Nova gave `has`, after its volume was connected at `path`."""
    bench = Bench(driver=driver)
    lane = bench.attached()
    put_above(bench, lane, has)
    bench.records.clear()
    before = bench.store.read()["guests"]
    storage = KernelStorage(kernel.root)
    context = bench.context(brick=ByUdev(bench, path), storage=storage)
    told = bench.run(lane, Verb.ATTACHMENT_REFRESH, Verb.VOLUME_CONNECT, context=context)
    bench.run(lane, Verb.DISK_REPLACE, context=context)
    bench.run(replace(lane, disk=told["disk"]), Verb.DISK_VERIFY, context=context)
    assert bench.records[lane.attachment_id or ""].paths == [path]
    assert bench.store.read()["guests"] == before
    return bench


#: What os-brick (7.1) calls a multipath map: of iSCSI; of FC; and, of its own, an encrypted one.
NOVAS = ("/dev/dm-0", f"/dev/mapper/3{WWID}", "/dev/disk/by-id/os-brick+dev+dm-0")


@pytest.mark.parametrize("novas", NOVAS)
def test_a_running_guest_keeps_what_nova_has_connected_by_its_name(
    tmp_path: Path, novas: str
) -> None:
    """Nova names a device as os-brick does; the agent by what udev calls it."""
    kernel = Kernel(tmp_path / "root")
    for disk in ("sda", "sdb"):
        kernel.disk(disk, state="running", wwid=f"naa.{WWID}")
    kernel.map("dm-0", f"3{WWID}", "sda")
    mapped = kernel.link(f"/dev/disk/by-id/dm-uuid-mpath-3{WWID}", "dm-0")
    if novas != "/dev/dm-0":
        kernel.link(novas, "dm-0")
    refreshed(kernel, novas, mapped)
    with pytest.raises(PortError) as error:  # its path is not that by which it is connected now
        refreshed(kernel, "/dev/sda", kernel.link(f"/dev/disk/by-id/wwn-0x{WWID}", "sdb"))
    assert error.value.code == "refresh_needs_stop"


def test_a_running_guest_keeps_the_file_that_nova_has_mounted_elsewhere(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path / "root")
    for at, source in (("nova", "a:/cinder"), ("own", "a:/cinder"), ("moved", "b:/cinder")):
        kernel.mount(f"/mnt/{at}", source)
    refreshed(kernel, "/mnt/nova/volume-1", "/mnt/own/volume-1", "nfs")
    with pytest.raises(PortError) as error:
        refreshed(kernel, "/mnt/nova/volume-1", "/mnt/moved/volume-1", "nfs")
    assert error.value.code == "refresh_needs_stop"


def test_what_was_brought_back_is_taken(bench: Bench) -> None:
    lane = bench.attached()
    before = bench.store.read()
    put_above(bench, lane)
    with bench.store.edit() as state:
        state.update(before)
    bench.run(lane, *DETACH)
    assert bench.records == {}


def test_storage_is_not_looked_at_while_sources_are_the_records_own(bench: Bench) -> None:
    class Blind:
        def look(self) -> object:
            raise OSError(5, "sysfs is not there")

    lane = bench.attached()
    bench.run(lane, Verb.DISK_UNPLUG, context=bench.context(storage=Blind()))
    other = bench.attached()
    put_above(bench, other)
    with pytest.raises(PortError, match="sysfs is not there") as error:
        bench.run(other, Verb.DISK_UNPLUG, context=bench.context(storage=Blind()))
    assert (error.value.kind, error.value.code) == (ErrorKind.RETRYABLE, "storage_unseen")


def test_without_a_record_nothing_is_known_and_the_disk_is_taken(bench: Bench) -> None:
    lane = bench.attached()
    put_above(bench, lane)
    bench.records.clear()
    bench.run(lane, Verb.DISK_UNPLUG)


@pytest.mark.parametrize("verb", [Verb.VOLUME_DISCONNECT, Verb.CONNECTION_RELEASE])
def test_nothing_is_disconnected_under_a_disk_without_our_label(bench: Bench, verb: Verb) -> None:
    lane = bench.attached()
    source = unlabel(bench, lane)
    [guest] = bench.surveyor().survey(0).guests
    shown = UnlabelledShown(target="vdb", source=source, volume_id=lane.volume_id)
    assert (guest.disks, guest.unlabelled) == ((), (shown,))
    with pytest.raises(PortError, match=source) as error:
        bench.run(lane, verb)
    assert (error.value.kind, error.value.code) == (ErrorKind.FINAL, "disk_still_plugged")
    assert bench.records


def test_a_lun_that_a_guest_has_as_the_former_volume_is_not_let_go_while_it_runs() -> None:
    """The storage has given its number to this one; the host knows it as that one still."""
    bench = Bench()
    former, lane = bench.attached(), bench.lane()
    bench.run(lane, *ATTACH[:1])
    [path] = bench.records[former.attachment_id or ""].paths
    let_go = []

    class Stale:
        def connect(self, info: ConnectionInfo) -> object:
            raise OtherVolumeError("It is another one.", {"type": "block", "path": path})

        def disconnect(self, info: ConnectionInfo, device: dict[str, object]) -> None:
            let_go.append(device["path"])

    def run(*verbs: Verb) -> None:
        bench.run(lane, *verbs, context=bench.context(brick=Stale()))

    with pytest.raises(PortError, match="another one"):
        run(*ATTACH[1:])
    with pytest.raises(PortError, match="stop that guest") as error:
        run(Verb.VOLUME_DISCONNECT)
    assert (error.value.kind, error.value.code) == (ErrorKind.FINAL, "disk_still_plugged")
    assert (let_go, lane.attachment_id in bench.records) == ([], True)
    set_power(bench.store, former.server_id, PowerState.SHUTDOWN)
    run(Verb.VOLUME_DISCONNECT)
    assert (let_go, lane.attachment_id in bench.records) == ([path], False)


def test_cinders_own_snapshots_go_on_and_somebody_elses_is_not_put_below_one() -> None:
    """Of its own the record names the new file, once Cinder tells it (decision 0078)."""
    bench = Bench(driver="nfs")
    lane = bench.attached()
    put_above(bench, lane)
    bench.model.volumes[lane.volume_id].status = "in-use"
    snapshot = {"id": str(uuid.uuid4()), "file": "volume-1.snap"}
    taken = replace(lane, snapshot=snapshot)

    class Creating:
        def snapshot(self, snapshot_id: str) -> object:
            return type("Seen", (), {"id": snapshot_id, "status": "creating"})

    with pytest.raises(PortError) as error:
        bench.run(taken, Verb.DISK_SNAPSHOT, context=bench.context(cinder=Creating()))
    assert error.value.code == "other_source"


def test_a_survey_says_whether_a_disk_is_what_is_connected(bench: Bench) -> None:
    lane = bench.attached()
    [disk] = bench.surveyor().survey(0).guests[0].disks
    assert (disk.recorded, disk.size_bytes) == (True, 1 << 30)
    assert disk.device_bytes == (1 << 30 if bench.driver == "iscsi" else None)
    put_above(bench, lane)
    [disk] = bench.surveyor().survey(0).guests[0].disks
    assert (disk.recorded, disk.source) == (False, STRAY)
    bench.records.clear()
    [disk] = bench.surveyor().survey(0).guests[0].disks
    assert disk.recorded is None


def test_what_cannot_be_looked_at_says_nothing_of_disks() -> None:
    bench = Bench()
    bench.attached()
    bench.faults.replace([{"call": "storage.look", "do": "fail", "status": 500}])
    [guest] = bench.surveyor().survey(0).guests
    assert (guest.unlabelled, guest.disks[0].recorded) == (None, None)
