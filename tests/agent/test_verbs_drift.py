"""Verbs of repairs: a host says what it has, and takes nothing away that somebody may use."""

from __future__ import annotations

import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from host_agent.libvirt import processes
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind, Verb
from host_agent.shared.contract.ports import PortError
from tests.agent.bench import Bench, Reports, command, running_executor
from tests.doubles.host_checks import broken_invariants, connected_paths, plugged


def look(bench: Bench, lane: Lane) -> dict[str, Any]:
    shown = bench.run(lane, Verb.DRIFT_LOOK)["shown"]
    assert isinstance(shown, dict)
    return shown


def refusal(bench: Bench, lane: Lane, verb: Verb) -> str:
    with pytest.raises(PortError) as raised:
        bench.run(lane, verb)
    assert raised.value.kind is ErrorKind.FINAL
    return raised.value.code


def left(bench: Bench) -> Lane:
    """A connection whose guest has let its disk go, and whose attachment Cinder has deleted."""
    lane = bench.attached()
    bench.run(lane, Verb.DISK_UNPLUG)
    bench.model.drop_attachment(lane.attachment_id or "")
    bench.calls.clear()
    return lane


# --- looking ----------------------------------------------------------------------------


def test_a_look_tells_what_the_guest_and_the_records_have(bench: Bench) -> None:
    lane = bench.attached()
    assert look(bench, lane) == {
        "power_state": "running",
        "process": True,
        "live": "vdb",
        "persistent": "vdb",
        "running": True,
        "differs": [],
        "readonly_live": False,
        "readonly_persistent": False,
        "guests": [lane.server_id],
        "unexplained": [],
        "record": True,
        "elsewhere": False,
        "records": {lane.attachment_id: lane.server_id},
    }


def test_a_process_of_a_guest_is_seen_that_the_hypervisor_has_lost_sight_of() -> None:
    server_id = str(uuid.uuid4())
    qemu = ["/usr/bin/qemu-system-x86_64", "-name", "guest=vm", "-uuid", server_id, "-smp", "1"]
    own = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen([*own, *qemu], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # at first the kernel has no words of it
        assert processes.runs(server_id)
        assert not processes.runs(str(uuid.uuid4()))
        process.communicate(b"\n")
    assert not processes.runs(server_id)


def test_a_name_in_a_command_line_is_no_guest(tmp_path: Path) -> None:
    """Nor is what has ended meanwhile (its directory is empty)."""
    server_id = str(uuid.uuid4())
    for number, words in {"7": ["tail", f"/var/log/{server_id}"], "8": ["grep", server_id]}.items():
        (tmp_path / number).mkdir()
        (tmp_path / number / "cmdline").write_bytes(b"\0".join(map(str.encode, words)))
    (tmp_path / "9").mkdir()
    assert not processes.runs(server_id, tmp_path)


def test_a_look_changes_nothing_and_asks_neither_cinder_nor_the_storage(bench: Bench) -> None:
    lane = bench.attached()
    before, records = bench.store.read(), dict(bench.records)
    look(bench, lane)
    assert (bench.store.read(), bench.records) == (before, records)
    assert {call.partition(".")[0] for call in bench.calls} == {"guests"}


def test_a_look_names_disks_that_no_record_explains(bench: Bench) -> None:
    """By its serial alone nobody can tell that a disk is not of the volume that is asked for."""
    lane = bench.attached()
    bench.records.clear()
    assert look(bench, lane)["unexplained"] == [lane.volume_id]
    other = replace(lane, volume_id=str(uuid.uuid4()), attachment_id=str(uuid.uuid4()))
    assert look(bench, other)["unexplained"] == [lane.volume_id]


def test_a_look_names_other_guests_and_other_servers_of_the_volume(bench: Bench) -> None:
    first, second = bench.two_users()
    nowhere = replace(first, server_id=str(uuid.uuid4()), attachment_id=str(uuid.uuid4()))
    shown = look(bench, nowhere)
    assert shown["guests"] == sorted([first.server_id, second.server_id])
    assert set(shown["records"].values()) == {first.server_id, second.server_id}
    assert (shown["power_state"], shown["record"]) == (None, False)


def test_a_look_at_a_server_alone_asks_for_no_volume(
    bench: Bench, reports: Reports, tmp_path: Path
) -> None:
    lane = replace(bench.lane(), volume_id="", attachment_id=None)
    bench.calls.clear()
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(command(lane, (Verb.DRIFT_LOOK,)))
        [result] = reports.wait(1)
    assert result.error is None
    assert result.outputs["shown"]["power_state"] == "running"
    assert not [call for call in bench.calls if call.startswith("cinder")]


# --- releasing --------------------------------------------------------------------------


def test_what_is_left_goes_by_the_hosts_own_record_without_cinder(bench: Bench) -> None:
    lane = left(bench)
    assert bench.run(lane, Verb.CONNECTION_RELEASE) == {"shared": False}
    assert (connected_paths(bench.store), bench.records) == (set(), {})
    assert not [call for call in bench.calls if call.startswith("cinder")]
    assert bench.run(lane, Verb.CONNECTION_RELEASE) == {}
    assert broken_invariants(bench.store) == []


def test_what_is_left_goes_as_the_device_that_it_was_connected_as(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By it os-brick knows the multipath to flush (LP 1785669)."""
    lane, gone = left(bench), []
    [record] = bench.records.values()
    monkeypatch.setattr(bench, "brick", SimpleNamespace(disconnect=lambda *it: gone.append(it)))
    bench.run(lane, Verb.CONNECTION_RELEASE)
    [info] = record.infos
    assert gone == [(info, record.device_of(info))]
    assert record.device_of(info)


def test_nothing_is_released_under_a_guest_that_has_the_disk(bench: Bench) -> None:
    lane = bench.attached()
    assert refusal(bench, lane, Verb.CONNECTION_RELEASE) == "disk_still_plugged"
    assert connected_paths(bench.store) != set()
    assert list(bench.records) == [lane.attachment_id]


def test_a_device_that_another_record_or_the_ledger_explains_stays(bench: Bench) -> None:
    first, second = bench.two_users()
    bench.run(first, Verb.DISK_UNPLUG)
    assert bench.run(first, Verb.CONNECTION_RELEASE) == {"shared": True}
    assert list(bench.records) == [second.attachment_id]
    lane = left(bench)
    bench.users.by_attachment["another"] = (lane.volume_id, "another server")
    assert bench.run(lane, Verb.CONNECTION_RELEASE) == {"shared": True}
    assert len(connected_paths(bench.store)) == 2


def test_a_replaced_attachments_record_goes_while_the_guest_keeps_its_disk(bench: Bench) -> None:
    lane = bench.attached()
    old = replace(bench.records[lane.attachment_id or ""], attachment_id=str(uuid.uuid4()))
    bench.records[old.attachment_id] = old
    former = replace(lane, attachment_id=old.attachment_id)
    assert bench.run(former, Verb.CONNECTION_RELEASE) == {"shared": True}
    assert list(bench.records) == [lane.attachment_id]
    assert plugged(bench.store)[lane.server_id] == {lane.volume_id: ("vdb", "vdb")}


@pytest.mark.parametrize("driver", ["iscsi", "rbd"])
def test_a_former_volumes_record_goes_while_its_disk_is_on_the_volume_of_a_swap(
    bench: Bench, driver: str
) -> None:
    bench.driver = driver
    lane, former = bench.attached(), left(bench)
    former = replace(former, server_id=lane.server_id, serial=lane.disk_serial)
    bench.records[former.attachment_id or ""] = replace(
        bench.records[former.attachment_id or ""], server_id=lane.server_id, serial=lane.disk_serial
    )
    assert look(bench, former)["elsewhere"] is True
    assert bench.run(former, Verb.CONNECTION_RELEASE) == {"shared": False}
    assert list(bench.records) == [lane.attachment_id]
    assert len(connected_paths(bench.store)) == 1
    assert plugged(bench.store)[lane.server_id] == {lane.volume_id: ("vdb", "vdb")}


def test_a_former_volumes_record_stays_while_the_disk_is_still_there(bench: Bench) -> None:
    """The swap's other volume is connected, and the guest is not on it, or not yet."""
    lane, new = bench.attached(), left(bench)
    bench.records[new.attachment_id or ""] = replace(
        bench.records[new.attachment_id or ""], server_id=lane.server_id, serial=lane.disk_serial
    )
    assert look(bench, lane)["elsewhere"] is False
    assert refusal(bench, lane, Verb.CONNECTION_RELEASE) == "disk_still_plugged"
    assert len(connected_paths(bench.store)) == 2


def test_a_record_of_another_servers_does_not_explain_this_guests_disk(bench: Bench) -> None:
    first, _ = bench.two_users()
    assert refusal(bench, first, Verb.CONNECTION_RELEASE) == "disk_still_plugged"


# --- the rest ---------------------------------------------------------------------------


def test_a_disk_is_verified_by_what_it_reads_and_writes(bench: Bench) -> None:
    lane = bench.attached()
    disk = bench.run(lane, Verb.VOLUME_CONNECT)["disk"]
    assert bench.run(replace(lane, disk=disk), Verb.DISK_VERIFY) == {}
    moved = {**disk, "path": "/dev/somebody-elses"}
    assert refusal(bench, replace(lane, disk=moved), Verb.DISK_VERIFY) == "other_device"
    bench.run(lane, Verb.DISK_UNPLUG)
    assert refusal(bench, replace(lane, disk=disk), Verb.DISK_VERIFY) == "disk_not_plugged"


def test_a_secret_is_dropped_only_if_nobody_here_has_the_volume(bench: Bench) -> None:
    bench.encrypted = True
    lane = bench.attached()
    assert refusal(bench, lane, Verb.SECRET_DROP) == "volume_in_use"
    records = dict(bench.records)
    bench.records.clear()
    assert refusal(bench, lane, Verb.SECRET_DROP) == "volume_in_use"
    bench.run(lane, Verb.DISK_UNPLUG)
    bench.records.update(records)
    assert refusal(bench, lane, Verb.SECRET_DROP) == "volume_in_use"
    bench.records.clear()
    assert bench.run(lane, Verb.SECRET_DROP) == {}
    assert bench.store.read()["secrets"] == {}
