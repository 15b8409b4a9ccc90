"""The host's own records: what it may have connected, durable, and free of secrets."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from host_agent.shared.contract.messages import ErrorKind, Registration, Verb
from host_agent.shared.contract.ports import PortError
from host_agent.shared.contract.wire import plain, read
from host_agent.storage.records import FileRecords, Record, is_known, remember, there_now
from host_agent.survey import recorded
from tests.agent.bench import ATTACH, DETACH, Bench
from tests.doubles.host_checks import connected_paths

CONNECT = ATTACH[:3]


def record(**over: str) -> Record:
    ids = {
        name: str(uuid.uuid4()) for name in ("attachment_id", "volume_id", "server_id", "serial")
    }
    return Record(**{**ids, **over})  # type: ignore[arg-type]


def info(lun: int = 1, password: str = "s3cret-word") -> dict[str, object]:
    return {
        "driver_volume_type": "iscsi",
        "target_lun": lun,
        "target_portals": ["192.0.2.1:3260"],
        "auth_username": "u",
        "auth_password": password,
        "discovery_auth_password": password,
        "nested": {"keyring": password},
    }


def test_records_outlive_the_process_and_are_for_nobody_else(tmp_path: Path) -> None:
    kept = record()
    FileRecords(tmp_path / "c")[kept.attachment_id] = kept
    again = FileRecords(tmp_path / "c")
    assert dict(again) == {kept.attachment_id: kept}
    (file,) = (tmp_path / "c").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    del again[kept.attachment_id]
    assert list(FileRecords(tmp_path / "c")) == []
    assert again.pop(kept.attachment_id, None) is None


def test_a_record_is_on_the_disk_before_its_name_and_both_before_anybody_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut it is there whole, or not at all: by it the connection is ended."""
    kept, synced = record(), list[tuple[str, bool]]()
    file, fsync = tmp_path / f"{kept.attachment_id}.json", os.fsync

    def noted(handle: int) -> None:
        synced.append((Path(f"/proc/self/fd/{handle}").readlink().name, file.exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    records = FileRecords(tmp_path)
    records[kept.attachment_id] = kept
    assert synced == [(file.with_suffix(".new").name, False), (tmp_path.name, True)]
    del records[kept.attachment_id]
    assert synced[2:] == [(tmp_path.name, False)]


#: What alone may tell two volumes of one backend apart, by protocol, as Cinder's drivers send it.
APART = {
    "target_lun": ("iscsi", 1, 2),
    "target_luns": ("iscsi", [1, 1], [2, 2]),
    "target_iqn": ("iscsi", "iqn.2010-10.org.openstack:a", "iqn.2010-10.org.openstack:b"),
    "target_iqns": ("iscsi", ["iqn.a", "iqn.b"], ["iqn.a", "iqn.c"]),
    "target_portal": ("iscsi", "192.0.2.1:3260", "192.0.2.2:3260"),
    "target_portals": ("iscsi", ["192.0.2.1:3260"], ["192.0.2.2:3260"]),
    "target_wwn": ("fibre_channel", "50060e80", "50060e81"),
    "target_wwns": ("fibre_channel", ["50060e80"], ["50060e81"]),
    "target_nqn": ("nvmeof", "nqn.a", "nqn.b"),
    "volume_nguid": ("nvmeof", "1" * 32, "2" * 32),
    "vol_uuid": ("nvmeof", "a", "b"),
    "name": ("rbd", "volumes/a", "volumes/b"),
    "hosts": ("rbd", ["192.0.2.1"], ["192.0.2.2"]),
    "export": ("nfs", "192.0.2.1:/a", "192.0.2.1:/b"),
    "device_path": ("local", "/dev/a", "/dev/b"),
}


@pytest.mark.parametrize("key", APART)
def test_two_targets_that_differ_in_one_thing_are_two_connections(key: str) -> None:
    """Else the record of one is taken for the other's, and one of them is never disconnected."""
    driver, *values = APART[key]
    records: dict[str, Record] = {}
    kept = record()
    for value in values:
        remember(records, kept, {"driver_volume_type": driver, key: value, "auth_password": "x"})
        kept = records[kept.attachment_id]
    assert [known[key] for known in kept.infos] == values


def test_no_secret_is_recorded(tmp_path: Path) -> None:
    records = FileRecords(tmp_path)
    remember(records, new := record(), info())
    (file,) = tmp_path.iterdir()
    assert "s3cret-word" not in file.read_text()
    (known,) = records[new.attachment_id].infos
    assert known["target_portals"] == ["192.0.2.1:3260"]
    assert known["auth_username"] == "u"


def test_another_connection_of_the_same_attachment_is_kept_beside_the_former() -> None:
    records: dict[str, Record] = {}
    new = record()
    for lun in (1, 2, 1):
        remember(records, new, info(lun))
    assert [known["target_lun"] for known in records[new.attachment_id].infos] == [1, 2]


def test_the_same_connection_is_not_written_again(tmp_path: Path) -> None:
    records = FileRecords(tmp_path)
    remember(records, new := record(), info())
    (file,) = tmp_path.iterdir()
    before = file.stat().st_ino
    remember(records, new, info(password="changed-word"))
    assert file.stat().st_ino == before


def test_record_that_cannot_be_read_is_told_and_not_ignored(tmp_path: Path) -> None:
    attachment_id = str(uuid.uuid4())
    (tmp_path / f"{attachment_id}.json").write_text("{")
    with pytest.raises(PortError, match=attachment_id) as raised:
        FileRecords(tmp_path).get(attachment_id)
    assert raised.value.kind is ErrorKind.RETRYABLE


def test_a_record_under_the_name_of_another_attachment_is_none_to_go_by(tmp_path: Path) -> None:
    """A copy of a record would end the connection of the one that it was copied from."""
    records, mine, copy = FileRecords(tmp_path), record(), str(uuid.uuid4())
    remember(records, mine, info())
    (tmp_path / f"{copy}.json").write_text((tmp_path / f"{mine.attachment_id}.json").read_text())
    with pytest.raises(PortError, match=f"{copy}.*is of attachment {mine.attachment_id}") as raised:
        records.get(copy)
    assert raised.value.kind is ErrorKind.RETRYABLE
    assert records.get(mine.attachment_id) is not None
    assert recorded(records).why == raised.value.message, "the survey says so, too"


@pytest.mark.parametrize("id_", ["", None, "../secret", "a"])
def test_what_is_no_id_has_no_record(tmp_path: Path, id_: Any) -> None:
    """A lane without an attachment is looked up, too (a server that is forgotten)."""
    (tmp_path / "secret.json").write_text("{}")
    records = FileRecords(tmp_path / "c")
    assert records.get(id_) is None
    assert id_ not in records
    assert records.pop(id_, None) is None


def test_what_else_stands_beside_the_records_is_none_and_keeps_no_host_away(tmp_path: Path) -> None:
    """A registration tells all of them, and one that is no id would be refused for ever."""
    records, mine = FileRecords(tmp_path), record()
    records[mine.attachment_id] = mine
    for name in (f"{mine.attachment_id}-old", mine.attachment_id.upper(), "notes"):
        (tmp_path / f"{name}.json").write_text("{}")
    told = Registration(service_version=1, capabilities={}, guests=(), connections=tuple(records))
    assert read(plain(told), Registration).connections == (mine.attachment_id,)
    assert there_now(records) == [mine]


class Vanishing(dict[str, Record]):
    """Another run removes one of the records while they are read."""

    def __init__(self, gone: str, records: dict[str, Record]) -> None:
        super().__init__(records)
        self.gone = gone

    def __iter__(self) -> Iterator[str]:
        names = list(super().__iter__())
        super().pop(self.gone, None)
        return iter(names)

    values = MutableMapping.values  # type: ignore[assignment]  # as FileRecords has them
    items = MutableMapping.items  # type: ignore[assignment]


@pytest.mark.parametrize("legacy", [False, True])
def test_a_record_that_another_run_removes_meanwhile_is_in_nobodys_way(
    bench: Bench, *, legacy: bool
) -> None:
    lane = bench.old_lane() if legacy else bench.lane()
    bench.run(lane, *ATTACH)
    other = bench.attached()
    gone = other.attachment_id or ""
    bench.records = Vanishing(gone, bench.records)
    assert bench.run(lane, Verb.DRIFT_LOOK)["shown"]["record"]
    bench.records[gone] = record(attachment_id=gone)
    bench.run(lane, *DETACH)
    assert len(connected_paths(bench.store)) == 1, "of the other"


def test_a_disconnect_asks_no_record_of_others(bench: Bench, tmp_path: Path) -> None:
    """One that cannot be read keeps nobody else's volume on the host."""
    bench.records = FileRecords(tmp_path)  # type: ignore[assignment]
    lane = bench.attached()
    (tmp_path / f"{uuid.uuid4()}.json").write_text("{")
    bench.run(lane, *DETACH)
    assert connected_paths(bench.store) == set()


def test_a_connection_is_known_by_whichever_record_has_it(tmp_path: Path) -> None:
    records, mine, other = FileRecords(tmp_path), record(), record()
    remember(records, other, info())
    assert [is_known(records, info(lun)) for lun in (1, 2)] == [True, False]
    remember(records, mine, info(2))
    del records[other.attachment_id]
    assert [is_known(records, info(lun)) for lun in (1, 2)] == [False, True]


def test_a_record_of_others_that_is_gone_or_broken_keeps_nobody_from_connecting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, other = FileRecords(tmp_path), record()
    monkeypatch.setattr(FileRecords, "__iter__", lambda _self: iter([other.attachment_id]))
    assert not is_known(records, info())
    (tmp_path / f"{other.attachment_id}.json").write_text("{")
    assert is_known(records, info()), "so it is looked"


def test_record_that_cannot_be_written_prevents_the_connect(bench: Bench, tmp_path: Path) -> None:
    lane = bench.lane()
    bench.run(lane, Verb.ATTACHMENT_UPDATE)
    records = FileRecords(tmp_path)
    (tmp_path / f"{lane.attachment_id}.new").mkdir()
    with pytest.raises(PortError, match="disk is writable"):
        bench.run(lane, Verb.VOLUME_CONNECT, context=bench.context(records=records))
    assert connected_paths(bench.store) == set()


# --- when they are made and used ------------------------------------------------------


@pytest.mark.parametrize("deed", ["fail", "fail_after", "timeout_after"])
def test_recorded_before_it_is_connected(bench: Bench, deed: str) -> None:
    lane = bench.lane()
    bench.faults.replace([{"call": "brick.connect", "do": deed}])
    with pytest.raises(PortError):
        bench.run(lane, *CONNECT)
    assert json.dumps([r.volume_id for r in bench.records.values()]) == f'["{lane.volume_id}"]'


def test_forgotten_after_a_proven_disconnect_and_not_before(bench: Bench) -> None:
    lane = bench.attached()
    bench.faults.replace([{"call": "brick.disconnect", "do": "fail"}])
    with pytest.raises(PortError):
        bench.run(lane, *DETACH)
    assert list(bench.records) == [lane.attachment_id]
    bench.run(lane, *DETACH)
    assert bench.records == {}


def test_what_cinder_has_forgotten_is_disconnected_by_the_record(bench: Bench) -> None:
    lane = bench.attached()
    bench.run(lane, Verb.DISK_UNPLUG)
    bench.model.drop_attachment(lane.attachment_id or "")
    assert bench.run(lane, Verb.VOLUME_DISCONNECT) == {"shared": False}
    assert connected_paths(bench.store) == set()


def test_what_cinder_knows_differently_is_disconnected_as_it_was_connected(bench: Bench) -> None:
    """Hazard X12: by another connection's data the old one would stay for ever."""
    lane = bench.attached()
    bench.run(lane, Verb.DISK_UNPLUG)
    row = bench.model.attachments[lane.attachment_id or ""]
    row.connection_info = {**row.connection_info, "target_iqn": "iqn.of:another"}
    row.connection_info["target_iqns"] = ["iqn.of:another"]
    bench.run(lane, Verb.VOLUME_DISCONNECT)
    assert connected_paths(bench.store) == set()


def test_lp1785669_a_disconnect_is_given_back_what_its_connect_returned(bench: Bench) -> None:
    """By the device os-brick decides what is flushed: the multipath, or one path of it."""
    lane = bench.attached()
    (kept,) = bench.records.values()
    (told,) = kept.infos
    assert kept.device_of(told) == {
        "type": "block",
        "path": connected_paths(bench.store).pop(),
        "use_multipath": False,
    }
    given = []
    real = bench.brick.disconnect

    def disconnect(info: Any, device: Any = None) -> None:
        given.append(device)
        real(info, device)

    bench.brick.disconnect = disconnect  # type: ignore[method-assign]
    bench.run(lane, *DETACH)
    assert given == [kept.device_of(told)]


def test_a_record_of_an_agent_that_kept_no_device_still_disconnects(bench: Bench) -> None:
    lane = bench.attached()
    (kept,) = bench.records.values()
    bench.records[kept.attachment_id] = replace(kept, devices={})
    bench.run(lane, *DETACH)
    assert connected_paths(bench.store) == set()


def test_devices_outlive_the_process_and_their_secrets_do_not(tmp_path: Path) -> None:
    records = FileRecords(tmp_path)
    known = remember(records, new := record(), info())
    device = {"path": "/dev/dm-7", "multipath_id": "3600a", "auth_password": "s3cret-word"}
    records[new.attachment_id] = known.connected(info(), device)
    again = FileRecords(tmp_path)[new.attachment_id].device_of(info())
    assert again == {"path": "/dev/dm-7", "multipath_id": "3600a"}
    (file,) = tmp_path.iterdir()
    assert "s3cret-word" not in file.read_text()


def test_records_of_older_and_newer_agents_are_readable(tmp_path: Path) -> None:
    records, kept = FileRecords(tmp_path), record().having(info())
    records[kept.attachment_id] = kept
    (file,) = tmp_path.iterdir()
    stored = json.loads(file.read_text())
    del stored["devices"]
    file.write_text(json.dumps({**stored, "of_a_later_agent": 1}))
    assert records[kept.attachment_id] == kept


def test_a_mode_is_no_other_target() -> None:
    """Else what is connected now would be taken for a former connection, and be ended."""
    writable, readonly = {**info(), "access_mode": "rw"}, {**info(), "access_mode": "ro"}
    assert len(record().having(writable).having(readonly).infos) == 1
