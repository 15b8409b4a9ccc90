"""What a survey says: put together from what guests, records, storage and secrets show."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from host_agent import survey as survey_module
from host_agent.shared.contract.messages import PowerState, Verb
from host_agent.shared.contract.survey import PARTS, TEXT_CHARS_MAX, StorageShown, Survey
from host_agent.shared.contract.wire import WireError, plain, read
from host_agent.shared.faults import Faults
from host_agent.shared.platform.masking import MASK, without_secrets
from host_agent.simulated.adapters import SimulatedGuests, SimulatedStorage
from host_agent.simulated.host_state import HostState
from host_agent.storage.records import FileRecords, Record
from host_agent.survey import Surveyor
from tests.agent.bench import ATTACH, DETACH, PASSPHRASE, WAIT_S, Bench
from tests.surveys import survey as empty_survey


def surveyed(bench: Bench, **over: Any) -> Survey:
    return bench.surveyor(**over).survey(epoch=3)


def test_an_attached_volume_is_shown_by_guest_record_and_storage(bench: Bench) -> None:
    lane = bench.attached()
    survey = surveyed(bench)
    assert (survey.boot_id, survey.epoch, survey.blind) == ("boot-1", 3, ())
    [guest] = survey.guests
    [disk] = guest.disks
    assert (guest.server_id, guest.power_state) == (lane.server_id, PowerState.RUNNING)
    assert (disk.serial, disk.live, disk.persistent) == (lane.volume_id, "vdb", "vdb")
    [connection] = survey.connections
    ids = (connection.attachment_id, connection.volume_id, connection.server_id, connection.serial)
    assert ids == (lane.attachment_id, lane.volume_id, lane.server_id, lane.volume_id)
    assert (connection.present, connection.used) == (True, True)
    [storage] = survey.storage
    assert storage == StorageShown(
        kind="iscsi_session", name=disk.source or "", recorded=True, used=True
    )


def test_it_changes_nothing_and_takes_no_lock(bench: Bench) -> None:
    bench.attached()
    before = bench.store.read()
    surveyed(bench)
    assert bench.store.read() == before
    assert set(bench.calls) == {"guests.survey", "guests.sizes", "guests.secrets"}, (
        "Cinder is not asked"
    )


@pytest.mark.parametrize("verbs", [ATTACH, DETACH], ids=["attach", "detach"])
def test_what_a_run_does_while_storage_is_looked_at_is_explained(
    bench: Bench, verbs: tuple[Verb, ...]
) -> None:
    """Its record is there from before it is connected until after it is not."""
    lane = bench.lane() if verbs is ATTACH else bench.attached()
    if verbs is ATTACH:
        bench.run(lane, *ATTACH[:2])
    storage = SimulatedStorage(bench.store, bench.faults, "h")

    class Busy:
        def look(self) -> Any:
            if verbs is ATTACH:
                bench.run(lane, *ATTACH[2:])
            seen = storage.look()
            if verbs is DETACH:
                bench.run(lane, *DETACH)
            return seen

        others = storage.others

    survey = Surveyor(bench.guests, bench.records, Busy(), "boot-1").survey(0)
    assert [each.recorded for each in survey.storage] == [True]
    assert len(survey.connections) == (verbs is ATTACH), "as of the end"


def test_what_is_connected_without_a_record_is_shown(bench: Bench) -> None:
    bench.records.pop(bench.attached().attachment_id or "")
    with bench.store.edit() as state:
        state["connected"]["planted"] = {"driver": "nvmeof", "path": "/dev/simulated/planted"}
        state["connected"]["image"] = {"driver": "rbd", "path": "pool/image"}
    used, planted = surveyed(bench).storage
    assert (used.recorded, used.used) == (False, True)
    assert planted == StorageShown(
        kind="nvme_subsystem", name="/dev/simulated/planted", recorded=False, used=False
    )


def test_a_record_whose_device_is_gone_is_shown_so(bench: Bench) -> None:
    bench.run(bench.lane(), *ATTACH[:3])
    with bench.store.edit() as state:
        state["connected"].clear()
    [connection] = surveyed(bench).connections
    assert (connection.present, connection.used) == (False, False)


def test_a_guests_disk_that_is_another_volume_by_now_is_not_the_recorded_one(
    bench: Bench,
) -> None:
    """The storage has given its number to another one; the kernel shows what it was."""
    lane, beside = bench.attached(), bench.attached()
    [path] = bench.records[lane.attachment_id or ""].paths
    with bench.store.edit() as state:
        for entry in state["connected"].values():
            entry["other"] = entry["path"] == path
    shown = {disk.serial: disk.recorded for each in surveyed(bench).guests for disk in each.disks}
    assert shown == {lane.volume_id: False, beside.volume_id: True}


def test_storage_that_does_not_answer_keeps_nothing_else_blind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs is asked apart, and once."""
    lane = bench.attached()
    go_on, asked = threading.Event(), []

    def hang(paths: Any) -> frozenset[str]:
        asked.append([*paths])
        assert go_on.wait(WAIT_S)
        return frozenset()

    monkeypatch.setattr(survey_module, "ASKED_S_MAX", 0.05)
    surveyor = bench.surveyor()
    surveyor._ask["others"] = lambda: survey_module.PartSeen(seen=hang([lane.volume_id]))
    began = time.monotonic()
    for _ in range(2):
        survey = surveyor.survey(1)
        assert survey.blind == ()
        assert [disk.recorded for each in survey.guests for disk in each.disks] == [True]
    assert time.monotonic() - began < survey_module.LOOK_S_MAX
    go_on.set()
    assert len(asked) == 1


def test_a_connection_that_no_guest_uses_is_shown_so(bench: Bench) -> None:
    bench.run(bench.lane(), *ATTACH[:3])
    [connection] = surveyed(bench).connections
    assert (connection.present, connection.used) == (True, False)
    [storage] = surveyed(bench).storage
    assert (storage.recorded, storage.used) == (True, False)


@pytest.mark.parametrize("plugged", [True, False])
def test_of_rbd_only_its_use_is_known(plugged: bool) -> None:
    bench = Bench(driver="rbd")
    bench.run(bench.lane(), *(ATTACH if plugged else ATTACH[:3]))
    survey = surveyed(bench)
    [connection] = survey.connections
    assert (connection.present, connection.used, survey.storage) == (None, plugged, ())


def test_a_record_of_an_older_agent_says_nothing_of_its_device(bench: Bench) -> None:
    lane = bench.lane()
    record = Record(
        attachment_id=lane.attachment_id or "",
        volume_id=lane.volume_id,
        server_id=lane.server_id,
        serial=lane.volume_id,
    )
    bench.records[record.attachment_id] = record
    [connection] = surveyed(bench).connections
    assert (connection.present, connection.used) == (None, None)


def test_secrets_are_shown_by_their_volumes() -> None:
    bench = Bench(encrypted=True)
    lane = bench.attached()
    assert surveyed(bench).secrets == (lane.volume_id,)


def test_equal_hosts_have_equal_surveys_whatever_came_first() -> None:
    """And different ones do not."""
    bench = Bench(encrypted=True)
    for _ in range(4):
        bench.attached()
    one = surveyed(bench)
    turned = Bench(records=dict(reversed(bench.records.items())))
    with turned.store.edit() as state:
        for name, entries in bench.store.read().items():
            state[name] = dict(reversed(entries.items()))
    assert surveyed(turned) == one
    assert surveyed(turned).digest() == one.digest()
    assert read(plain(one), Survey) == one
    with turned.store.edit() as state:
        state["secrets"].popitem()
    assert surveyed(turned).digest() != one.digest()


# --- no secrets --------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["iscsi", "rbd", "local"])
def test_no_secret_and_no_connection_information_is_in_it(driver: str) -> None:
    bench = Bench(driver=driver, encrypted=True)
    lane = bench.attached()
    info = bench.cinder.attachment(lane.attachment_id or "").connection_info
    secret = {**info, "auth_password": "chap-password", "keyring": "ceph-keyring"}
    record = bench.records[lane.attachment_id or ""]
    with_secrets = Record(**{**vars(record), "infos": (secret,)})
    bench.records[record.attachment_id] = with_secrets
    text = json.dumps(plain(surveyed(bench)))
    for value in (PASSPHRASE, "chap-password", "ceph-keyring", *_secrets_of(info)):
        assert value not in text
    names = {"auth_username", "target_portal", "hosts", "ports"}
    assert not [name for name in names & info.keys() if str(info[name]) in text]
    assert not {*names, "driver_volume_type"} & set(_keys(json.loads(text)))


def _secrets_of(info: dict[str, Any]) -> list[str]:
    public = without_secrets(info)
    return [str(value) for name, value in info.items() if name not in public and value]


def _keys(data: Any) -> list[str]:
    match data:
        case dict():
            return [*data, *(key for value in data.values() for key in _keys(value))]
        case list():
            return [key for value in data for key in _keys(value)]
    return []


def test_reasons_and_names_are_masked_and_can_be_shown(bench: Bench) -> None:
    with bench.store.edit() as state:
        for number, path in enumerate(("/dev/\x1b[2J?password=topsecret", "x" * 600)):
            state["connected"][f"odd{number}"] = {"driver": "iscsi", "path": path}
    rule = {"call": "guests.secrets", "do": "fail", "kind": "retryable", "message": "token=tops\n"}
    bench.faults.replace([rule])
    survey = surveyed(bench)
    text = json.dumps(plain(survey))
    assert "tops" not in text
    assert survey.storage[0].name.startswith("/dev/\\u001b[2J")
    assert len(survey.storage[1].name) == TEXT_CHARS_MAX
    assert survey.why_blind == (f"token={MASK}\\u000a",)


# --- what cannot be seen -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "blind"),
    [
        ("guests.survey", ("guests", "storage")),
        ("guests.secrets", ("secrets",)),
        ("storage.look", ("storage",)),
    ],
)
def test_each_part_may_be_blind_by_itself(bench: Bench, call: str, blind: tuple[str, ...]) -> None:
    bench.attached()
    bench.faults.replace([{"call": call, "do": "fail", "kind": "retryable", "message": "down"}])
    survey = surveyed(bench)
    assert survey.blind == blind
    assert survey.why_blind[0] == "down"
    seen = {part: bool(getattr(survey, part)) for part in PARTS if part != "secrets"}
    assert seen == {part: part not in blind for part in seen}


def test_without_guests_it_is_not_known_what_is_used(bench: Bench) -> None:
    bench.attached()
    bench.faults.replace([{"call": "guests.survey", "do": "fail", "kind": "unknown"}])
    survey = surveyed(bench)
    [connection] = survey.connections
    assert (connection.present, connection.used, survey.storage) == (True, None, ())
    assert "what is used" in survey.why_blind[1]


def test_a_record_that_cannot_be_read_leaves_the_others(bench: Bench, tmp_path: Path) -> None:
    records = FileRecords(tmp_path)
    bench.attached()
    for record in bench.records.values():
        records[record.attachment_id] = record
    broken = uuid.uuid4()
    (tmp_path / f"{broken}.json").write_text("{")
    bench.records = records  # type: ignore[assignment]
    survey = surveyed(bench)
    assert len(survey.connections) == 1
    assert survey.blind == ("connections", "storage")
    assert str(broken) in survey.why_blind[0]


def test_a_record_that_is_removed_meanwhile_is_none(bench: Bench) -> None:
    class Fleeting(dict[str, Record]):
        def __iter__(self) -> Any:
            return iter([*super().__iter__(), str(uuid.uuid4())])

    bench.attached()
    bench.records = Fleeting(bench.records)
    survey = surveyed(bench)
    assert (len(survey.connections), survey.blind) == (1, ())


def test_a_fault_of_our_own_keeps_one_part_blind(bench: Bench) -> None:
    with bench.store.edit() as state:
        [server_id] = [bench.server()]
        state["guests"][server_id] = {"name": "x", "power_state": "running", "live": "<"}
    survey = surveyed(bench)
    assert survey.blind == ("guests", "storage")


class Stuck:
    """A hypervisor that does not answer about guests until it is let."""

    def __init__(self, guests: Any) -> None:
        self._guests = guests
        self.go_on, self.done = threading.Event(), threading.Event()
        self.asked = 0

    def secrets(self) -> list[str]:
        found: list[str] = self._guests.secrets()
        return found

    def survey(self) -> Any:
        self.asked += 1
        assert self.go_on.wait(WAIT_S)
        try:
            return self._guests.survey()
        finally:
            self.done.set()


def test_what_does_not_answer_in_time_is_blind_and_is_asked_once(bench: Bench) -> None:
    server_id = bench.server()
    stuck = Stuck(bench.guests)
    bench.guests = stuck  # type: ignore[assignment]
    surveyor = bench.surveyor(limit_s=0.05)
    first, second = surveyor.survey(1), surveyor.survey(1)
    assert first.blind == second.blind == ("guests", "storage")
    assert first.why_blind[0] == "it was not seen in 0.05 s"
    assert second.why_blind[0] == "the look before has not ended yet"
    assert stuck.asked == 1
    stuck.go_on.set()
    assert stuck.done.wait(WAIT_S)
    surveyor._under_way["guests"].result(WAIT_S)
    later = bench.surveyor().survey(1)
    assert ([guest.server_id for guest in later.guests], later.blind) == ([server_id], ())
    assert surveyor.survey(1).guests == later.guests


def test_all_parts_together_have_one_limit(bench: Bench) -> None:
    """They are looked at side by side: a slow one takes no time of another's."""
    together = threading.Barrier(3)

    class Meeting(Stuck):
        def survey(self) -> Any:
            together.wait(WAIT_S)
            return self._guests.survey()

        def secrets(self) -> list[str]:
            together.wait(WAIT_S)
            return super().secrets()

    bench.guests = Meeting(bench.guests)  # type: ignore[assignment]
    surveyor = bench.surveyor()
    look = surveyor._ask["storage"]
    surveyor._ask["storage"] = lambda: (together.wait(WAIT_S), look())[1]
    assert surveyor.survey(1).blind == ()


# --- how much ----------------------------------------------------------------------------------


def many(bench: Bench, guests: int, disks: int) -> None:
    """Guests with so many volumes each, as flows would have left them."""
    for _ in range(guests):
        server_id = bench.server()
        for number in range(disks):
            name = f"sd{chr(98 + number)}"
            bench.run(bench.lane(server_id, device_name=name), *ATTACH)


@pytest.mark.parametrize("most", [2, 5])
def test_no_more_is_sent_than_the_ledger_takes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    many(bench, guests=3, disks=2)
    monkeypatch.setattr(survey_module, "ITEMS_MAX", most)
    survey = surveyed(bench)
    assert set(survey.blind) == {"guests", "connections", "storage"}
    assert sum(len(guest.disks) for guest in survey.guests) == most // 2 * 2
    assert len(survey.connections) == len(survey.storage) == most
    assert surveyed(bench) == survey
    assert survey.why_blind[0] == f"there is more of it than {most}"


def test_a_survey_asks_the_hypervisor_once_whatever_the_guests(bench: Bench) -> None:
    class Counted(HostState):
        reads = 0

        def read(self) -> Any:
            self.reads += 1
            return super().read()

    many(bench, guests=5, disks=2)
    store = Counted(initial=bench.store.read())
    guests = SimulatedGuests(store, Faults(), "h")
    bench.guests, bench.store = guests, store
    store.reads = 0
    survey = surveyed(bench)
    assert [len(guest.disks) for guest in survey.guests] == [2] * 5
    assert store.reads == 5, "guests, their sizes, secrets, storage, and its disks"


def test_a_survey_costs_as_much_for_each_record_however_many_there_are(bench: Bench) -> None:
    many(bench, guests=4, disks=5)
    storage = SimulatedStorage(bench.store, bench.faults, "h")
    asked = Counter[str]()

    class Counted:
        def look(self) -> Any:
            return Recorder(storage.look(), asked)

        others = storage.others

    Surveyor(bench.guests, bench.records, Counted(), "boot-1").survey(0)
    assert 0 < max(asked.values()) <= 5 * len(bench.records)


class Recorder:
    """Counts the calls of what it stands for."""

    def __init__(self, view: Any, asked: Counter[str]) -> None:
        self._view, self._asked = view, asked

    def __getattr__(self, name: str) -> Any:
        self._asked[name] += 1
        return getattr(self._view, name)


def test_what_is_not_of_the_form_is_refused_by_name() -> None:
    whole = plain(empty_survey())
    for name in whole:
        with pytest.raises(WireError, match=name):
            read({**whole, name: None}, Survey)
        with pytest.raises(WireError, match=name):
            read({key: value for key, value in whole.items() if key != name}, Survey)


def test_verbs_and_surveys_do_not_meet(bench: Bench) -> None:
    """What a survey reads while a run is under way is what the run has done so far."""
    lane = bench.attached()
    bench.run(lane, Verb.DISK_UNPLUG)
    survey = surveyed(bench)
    assert survey.guests[0].disks == ()
    assert survey.connections[0].used is False
