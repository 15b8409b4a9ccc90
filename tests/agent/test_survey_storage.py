"""A survey over a kernel's storage: what explains and uses what is shown, in made-up trees."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from host_agent.shared.contract.survey import Survey
from host_agent.storage.kernel import KernelStorage
from host_agent.storage.records import Record
from host_agent.survey import Surveyor
from tests.agent.bench import Bench
from tests.agent.kernel_tree import Kernel

WWID = "36001405aaaaaaaaaaaaaaaaaaaaaaaaa"


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path / "root")


def over_kernel(bench: Bench, kernel: Kernel) -> Survey:
    storage = KernelStorage(kernel.root)
    return Surveyor(bench.guests, bench.records, storage, "boot-1").survey(0)


def recording(bench: Bench, path: str, **told: Any) -> Record:
    """A record of something that was connected as this device."""
    ids: dict[str, Any] = {
        name: str(uuid.uuid4()) for name in ("attachment_id", "volume_id", "server_id", "serial")
    }
    device = {"path": path, **told.pop("device", {})}
    info = {"driver_volume_type": "iscsi", **told}
    record = Record(**ids).having(info).connected(info, device)
    bench.records[record.attachment_id] = record
    return record


def using(bench: Bench, path: str) -> None:
    """A guest has this for a disk of its own."""
    server_id = bench.server()
    with bench.store.edit() as state:
        guest = state["guests"][server_id]
        for copy in ("live", "persistent"):
            disk = (
                f'<disk type="block"><source dev="{path}"/><target dev="vdz" bus="virtio"/></disk>'
            )
            guest[copy] = guest[copy].replace("<devices>", f"<devices>{disk}")


def multipath(kernel: Kernel, bench: Bench) -> Record:
    for disk in ("sdb", "sdc"):
        kernel.disk(disk, state="running")
    kernel.session(1, "iqn.a", "sdb")
    kernel.session(2, "iqn.a", "sdc")
    kernel.map("dm-1", WWID, "sdb", "sdc")
    path = kernel.link("/dev/disk/by-id/dm-uuid-mpath-" + WWID, "dm-1")
    return recording(bench, path, device={"multipath_id": WWID}, target_iqns=["iqn.a", "iqn.a"])


def test_a_map_explains_its_sessions_and_is_used_by_whichever_name(
    bench: Bench, kernel: Kernel
) -> None:
    multipath(kernel, bench)
    before = over_kernel(bench, kernel)
    using(bench, kernel.link("/dev/mapper/mpatha", "dm-1"))
    after = over_kernel(bench, kernel)
    for survey, used in ((before, False), (after, True)):
        assert [(each.kind, each.name) for each in survey.storage] == [
            ("iscsi_session", "iqn.a"),
            ("multipath_map", WWID),
        ]
        assert {(each.recorded, each.used) for each in survey.storage} == {(True, used)}
        [connection] = survey.connections
        assert (connection.present, connection.used) == (True, used)


def test_a_target_of_two_sessions_works_while_one_does(bench: Bench, kernel: Kernel) -> None:
    kernel.session(1, "iqn.a", state="FAILED")
    kernel.session(2, "iqn.a")
    kernel.session(3, "iqn.b", state="FAILED")
    assert {each.name: each.faulty for each in over_kernel(bench, kernel).storage} == {
        "iqn.a": False,
        "iqn.b": True,
    }


def test_a_session_with_nothing_of_a_record_is_not_recorded(bench: Bench, kernel: Kernel) -> None:
    multipath(kernel, bench)
    kernel.disk("sdx")
    kernel.session(9, "iqn.orphan", "sdx")
    found = {each.name: each.recorded for each in over_kernel(bench, kernel).storage}
    assert found == {"iqn.a": True, "iqn.orphan": False, WWID: True}


def test_a_record_without_names_explains_what_its_device_is_reached_by(
    bench: Bench, kernel: Kernel
) -> None:
    """As of Fibre Channel, and of a connection that an agent died at."""
    kernel.disk("sdb")
    kernel.session(1, "iqn.a", "sdb")
    kernel.map("dm-1", WWID, "sdb")
    recording(bench, "/dev/dm-1")
    assert [each.recorded for each in over_kernel(bench, kernel).storage] == [True, True]


def test_what_dm_crypt_has_open_above_a_recorded_map_is_explained_by_none(
    bench: Bench, kernel: Kernel
) -> None:
    """Unless a guest has it, as those whose host decrypts."""
    multipath(kernel, bench)
    crypt = kernel.over("dm-2", "dm-1", uuid="CRYPT-PLAIN-left")
    kernel.put("sys/class/block/dm-2/dm/name", "left")

    def shown() -> dict[str, tuple[bool, bool]]:
        storage = over_kernel(bench, kernel).storage
        return {each.kind: (each.recorded, each.used) for each in storage}

    used = {"iscsi_session": (True, True), "multipath_map": (True, True)}
    assert shown() == {**used, "crypt": (False, False)}
    using(bench, crypt)
    assert shown() == {**used, "crypt": (False, True)}


def test_a_share_is_used_by_a_guests_file_below_it(bench: Bench, kernel: Kernel) -> None:
    kernel.mount("/mnt/a", "nas:/a")
    kernel.mount("/mnt/b", "nas:/b")
    recording(bench, "/mnt/a/volume-1", export="nas:/a", name="volume-1")
    using(bench, "/mnt/a/volume-1")
    one, other = over_kernel(bench, kernel).storage
    assert (one.name, one.recorded, one.used) == ("nas:/a", True, True)
    assert (other.name, other.recorded, other.used) == ("nas:/b", False, False)
    [connection] = over_kernel(bench, kernel).connections
    assert (connection.present, connection.used) == (True, True)


def test_a_loop_device_of_a_volumes_file_is_explained_and_held(
    bench: Bench, kernel: Kernel
) -> None:
    kernel.put("srv/volume-1", "")
    kernel.loop("loop0", "/srv/volume-1")
    kernel.loop("loop1", "/srv/other")
    recording(bench, "/srv/volume-1", driver_volume_type="local")
    other, one = over_kernel(bench, kernel).storage
    assert (one.name, one.recorded) == ("/srv/volume-1", True)
    assert (other.name, other.recorded) == ("/srv/other", False)
    [connection] = over_kernel(bench, kernel).connections
    assert (connection.present, connection.used) == (True, True)


def test_a_device_whose_number_another_disk_has_is_not_there(bench: Bench, kernel: Kernel) -> None:
    kernel.disk("dm-9")
    kernel.put("sys/class/block/dm-9/dm/uuid", "mpath-36001405b")
    recording(bench, "/dev/dm-9", device={"multipath_id": WWID})
    [connection] = over_kernel(bench, kernel).connections
    assert connection.present is False


def test_storage_that_cannot_be_read_is_blind(bench: Bench, tmp_path: Path) -> None:
    survey = over_kernel(bench, _Nothing(tmp_path))
    assert survey.blind == ("storage",)
    assert "class/block" in survey.why_blind[0]


class _Nothing(Kernel):
    def __init__(self, root: Path) -> None:
        self.root = root / "nothing"
