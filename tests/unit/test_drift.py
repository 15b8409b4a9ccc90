"""The table of the classes of drift: each has a row that is a case of it, and one that is not.

A new class of drift is one more row in `handlers/drift/classes.py`, and one more here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest

from aggregates.attachment import AttachmentState
from aggregates.base import About
from aggregates.finding import Finding, FindingState
from handlers.drift.classes import BY_NAME, CLASSES, WORKS_S, DriftClass, Severity
from handlers.drift.judge import (
    APART_S,
    Sight,
    apart_s,
    differs,
    drifting,
    miss,
    see,
    sound,
    suppressed,
)
from handlers.drift.rows import (
    SUBJECTS,
    UNKNOWN,
    AttachmentRow,
    CinderAttachment,
    CinderVolume,
    ConnectionRow,
    DiskRow,
    LedgerAttachment,
    LedgerDisk,
    LedgerServer,
    Party,
    Row,
    ServerRow,
    StorageRow,
    UnlabelledRow,
    VolumeRow,
)
from host_agent.shared.contract.messages import PowerState
from host_agent.shared.contract.ports import GIB
from host_agent.shared.contract.survey import (
    ConnectionShown,
    DiskShown,
    StorageShown,
    UnlabelledShown,
)
from ledger.cli.shell import COMMANDS
from ledger.native.drift.looks import held_back

HERE, THERE = "compute-1", "compute-2"
LUKS_HEAD = 16 << 20
RUNNING, OFF = PowerState.RUNNING.value, PowerState.SHUTDOWN.value

# --- what is sound: each case says in what it differs from this -------------------------------

OURS = LedgerAttachment(
    state="attached", host=HERE, access_mode="rw", legacy=False, mapped=True, device="vdb"
)
CINDERS = CinderAttachment(status="attached", host=HERE, mode="rw", mountpoint="vdb")
ATTACHMENT = AttachmentRow(
    id="a",
    about=About(attachment_id="a", volume_id="v", server_id="s", host=HERE),
    server="live",
    ledger=OURS,
    cinder=CINDERS,
    connected=True,
)
MADE = CinderVolume(status="in-use", attachments=1, made=True)
VOLUME = VolumeRow(id="v", about=About(volume_id="v"), mappings=1, had=True, cinder=MADE)
BUILT = LedgerServer(hosts=(HERE,), power_state=RUNNING, built=True, deleted=False)
SERVER = ServerRow(
    id="s", about=About(server_id="s", host=HERE), ledger=BUILT, shown=((HERE, RUNNING),)
)
MAPPED = LedgerDisk(volume_id="v", device_name="vdb", access_mode="rw", plugged=True)
SHOWN = DiskShown(
    serial="v",
    live="vdb",
    persistent="vdb",
    readonly_live=False,
    readonly_persistent=False,
    recorded=True,
    size_bytes=2 * GIB,
    device_bytes=2 * GIB,
)
DISK = DiskRow(
    id="s/v",
    about=About(server_id="s", volume_id="v", host=HERE),
    ledger=MAPPED,
    shown=SHOWN,
    running=True,
    cinder=2,
)
UNLABELLED = UnlabelledRow(
    id="s/vdc",
    about=About(server_id="s", volume_id="v", host=HERE),
    shown=UnlabelledShown(target="vdc", source="/mnt/volume-v", volume_id="v"),
)
RECORD = ConnectionShown(
    attachment_id="a", volume_id="v", server_id="s", serial="v", present=True, used=True
)
CONNECTION = ConnectionRow(
    id="a", about=About(attachment_id="a", host=HERE), ledger=OURS, shown=RECORD
)
SESSION = StorageShown(kind="iscsi_session", name="iqn", recorded=True, used=True)
STORAGE = StorageRow(id="iscsi_session iqn", about=About(host=HERE), shown=SESSION, wanted=True)
SOUND = (ATTACHMENT, VOLUME, SERVER, DISK, CONNECTION, STORAGE)


# --- the table --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A row that is a case of the class, and one like it that is none."""

    drifts: Row
    sound: Row


def attachment(**changes: Any) -> AttachmentRow:
    return replace(ATTACHMENT, **changes)


def volume(status: str, attachments: int, **changes: Any) -> VolumeRow:
    shown = replace(MADE, status=status, attachments=attachments)
    return replace(VOLUME, **{"cinder": shown, **changes})


def server(*shown: tuple[str, str], **changes: Any) -> ServerRow:
    return replace(SERVER, shown=shown, ledger=replace(BUILT, **changes))


def disk(**changes: Any) -> DiskRow:
    return replace(DISK, shown=replace(SHOWN, **changes))


def storage(kind: str, *, wanted: bool = False, **changes: Any) -> StorageRow:
    shown = StorageShown(**{"kind": kind, "name": "n", "recorded": False, "used": False, **changes})
    return replace(STORAGE, shown=shown, wanted=wanted)


RESERVED = CinderAttachment(status="reserved")
NOT_HERE = replace(OURS, host=THERE)

CASES: dict[str, Case] = {
    "reservation_unknown": Case(
        attachment(ledger=None, cinder=RESERVED),
        attachment(ledger=replace(OURS, state="reserved", host=None), cinder=RESERVED),
    ),
    "attachment_unknown": Case(attachment(ledger=None), attachment(ledger=None, server="deleted")),
    "owner_unknown": Case(
        attachment(ledger=None, server=None, taken=True),
        attachment(ledger=None, server=None),  # of a volume that no server of ours has
    ),
    "owner_gone": Case(
        attachment(ledger=None, server="deleted"),
        attachment(ledger=None, server=None),  # another service's
    ),
    "attachment_lost": Case(
        attachment(cinder=None), attachment(cinder=None, ledger=replace(OURS, legacy=True))
    ),
    "attachment_unmapped": Case(attachment(ledger=replace(OURS, mapped=False)), ATTACHMENT),
    "attachment_status_differs": Case(
        attachment(cinder=replace(CINDERS, status="attaching")),
        attachment(
            cinder=replace(CINDERS, status="attaching"), ledger=replace(OURS, state="connected")
        ),
    ),
    "attachment_host_differs": Case(
        attachment(cinder=replace(CINDERS, host=THERE)),
        attachment(cinder=replace(CINDERS, host=None)),  # Cinder does not tell it
    ),
    "attachment_mountpoint_differs": Case(
        attachment(cinder=replace(CINDERS, mountpoint="vdc")),
        attachment(cinder=replace(CINDERS, mountpoint=None)),  # it was told before there was one
    ),
    "attachment_mode_differs": Case(
        attachment(cinder=replace(CINDERS, mode="ro")),
        attachment(cinder=replace(CINDERS, mode="ro"), ledger=replace(OURS, access_mode="ro")),
    ),
    "connection_missing": Case(
        attachment(connected=False),
        attachment(connected=False, ledger=replace(OURS, state="reserved")),
    ),
    "legacy_mapping": Case(attachment(ledger=replace(OURS, legacy=True)), ATTACHMENT),
    "volume_gone": Case(replace(VOLUME, cinder=None), replace(VOLUME, cinder=None, mappings=0)),
    "volume_status_differs": Case(volume("available", 1), volume("in-use", 1)),
    "volume_stuck": Case(
        volume("deleting", 0, mappings=0),
        volume("deleting", 0, mappings=0, had=False),  # whose it was nobody here knows
    ),
    "volume_project_differs": Case(
        replace(VOLUME, projects=("p",), cinder=replace(MADE, project_id="q")),
        replace(VOLUME, projects=("p", "q"), cinder=replace(MADE, project_id="q")),
    ),
    "volume_of_nobody": Case(
        volume("available", 0, mappings=0, had=False),
        volume("available", 0, mappings=0, had=True),
    ),
    "guest_twice": Case(
        server((HERE, RUNNING), (THERE, RUNNING)),
        server((HERE, RUNNING), (THERE, OFF), hosts=(HERE, THERE)),
    ),
    "guest_missing": Case(server(), server(built=False)),
    "guest_elsewhere": Case(
        server((THERE, RUNNING)), server((THERE, OFF), (HERE, OFF), hosts=(HERE, THERE))
    ),
    "guest_of_deleted": Case(server((HERE, OFF), deleted=True), server(deleted=True)),
    "guest_undefined": Case(
        replace(SERVER, undefined=(HERE,)),
        replace(SERVER, undefined=(HERE,), ledger=replace(BUILT, deleted=True)),
    ),
    "power_differs": Case(server((HERE, OFF)), SERVER),
    "disk_missing": Case(
        disk(live=None),
        replace(DISK, shown=None, ledger=replace(MAPPED, plugged=False)),
    ),
    "disk_unknown": Case(replace(DISK, ledger=None), DISK),
    "disk_definition_differs": Case(disk(persistent=None), DISK),
    "disk_device_differs": Case(disk(live="vdc"), DISK),
    "disk_readonly_differs": Case(
        disk(readonly_live=True),
        replace(
            disk(readonly_live=True, readonly_persistent=True),
            ledger=replace(MAPPED, access_mode="ro"),
        ),
    ),
    "disk_source_differs": Case(disk(recorded=False), DISK),
    "disk_size_differs": Case(
        disk(size_bytes=GIB),
        disk(size_bytes=2 * GIB - LUKS_HEAD),  # encrypted
    ),
    "disk_unlabelled": Case(UNLABELLED, DISK),
    "connection_left": Case(replace(CONNECTION, ledger=NOT_HERE), CONNECTION),
    "record_left": Case(
        replace(CONNECTION, ledger=None, shown=replace(RECORD, present=False)),
        replace(CONNECTION, shown=replace(RECORD, present=False)),
    ),
    "storage_left": Case(storage("loop"), storage("loop", used=True)),
    "mount_unused": Case(storage("mount"), storage("mount", wanted=True)),
    "secret_left": Case(storage("secret"), storage("secret", wanted=True)),
    "paths_faulty": Case(
        storage("multipath_map", used=True, faulty=True), storage("multipath_map", used=True)
    ),
}

#: By status of a volume: as what it is found if it is attached, and if nobody has it.
WRONG, STUCK = "volume_status_differs", "volume_stuck"
STATUSES: dict[str, tuple[str | None, str | None]] = {
    "available": (WRONG, None),
    "in-use": (None, WRONG),
    "reserved": (None, WRONG),
    **dict.fromkeys(("attaching", "detaching", "error_detaching"), (WRONG, WRONG)),
    **dict.fromkeys(("creating", "deleting"), (WRONG, STUCK)),
    **dict.fromkeys(("extending", "retyping", "downloading"), (STUCK, STUCK)),
    **dict.fromkeys(("uploading", "backing-up", "restoring-backup"), (None, None)),
    **dict.fromkeys(
        ("error", "error_extending", "maintenance", "awaiting-transfer"), (WRONG, None)
    ),
    "error_deleting": (WRONG, WRONG),
}

COMPARED = [each for each in CLASSES if each.row is not None]
FACTS = [each for each in CLASSES if each.row is None]


def named(each: DriftClass) -> str:
    return each.name


def subject(row: Row) -> str:
    return SUBJECTS[type(row)].value


# --- what holds of every class ------------------------------------------------------------------


def test_every_class_has_a_name_of_its_own_and_every_compared_one_its_case() -> None:
    assert len(BY_NAME) == len(CLASSES) > 30
    assert set(CASES) == {each.name for each in COMPARED}
    assert {each.name for each in FACTS} == {"remnant", "operation_parked", "attachment_ended"}


@pytest.mark.parametrize("drift_class", COMPARED, ids=named)
def test_a_case_of_a_class_drifts_and_what_is_like_it_does_not(drift_class: DriftClass) -> None:
    case = CASES[drift_class.name]
    assert drift_class in drifting(case.drifts)
    assert drift_class not in sound(case.drifts)
    # Of what is there only as a case, the row itself is gone when it is over.
    assert drift_class in sound(case.sound) or type(case.sound) is not drift_class.row
    assert drift_class not in drifting(case.sound)


@pytest.mark.parametrize("drift_class", COMPARED, ids=named)
def test_what_a_party_did_not_say_is_never_drift(drift_class: DriftClass) -> None:
    row = CASES[drift_class.name].drifts
    for party in drift_class.parties:
        for unknown in silenced(row, party):
            assert drift_class not in drifting(unknown)
            assert drift_class not in sound(unknown)


def silenced(row: Any, party: Party) -> list[Any]:
    """The row if that party could not be asked; a ledger can, and a host that shows storage did."""
    if party is Party.CINDER:
        return [replace(row, cinder=UNKNOWN)]
    if party is Party.HOST and isinstance(row, AttachmentRow):
        return [replace(row, connected=UNKNOWN)]
    if party is Party.HOST and isinstance(row, DiskRow):
        return [replace(row, shown=UNKNOWN)]
    return []


@pytest.mark.parametrize("migration", ["starting", "migrating", "completing", "target:other"])
def test_no_status_differs_while_cinder_migrates_the_volume(migration: str) -> None:
    """To its last phase, in which Cinder exchanges both volumes; what is left of one is none."""
    wrong = CASES[WRONG].drifts
    assert isinstance(wrong, VolumeRow)
    assert isinstance(wrong.cinder, CinderVolume)
    for phase, names in ((migration, []), ("success", [WRONG]), ("error", [WRONG])):
        row = replace(wrong, cinder=replace(wrong.cinder, migration_status=phase))
        assert [each.name for each in drifting(row)] == names


@pytest.mark.parametrize("power", PowerState)
def test_a_guest_is_there_twice_if_both_run_or_could_go_on(power: PowerState) -> None:
    """One that is off, or has crashed, writes nothing."""
    off = {PowerState.SHUTDOWN, PowerState.NOSTATE, PowerState.CRASHED}
    row = server((HERE, RUNNING), (THERE, power.value), hosts=(HERE, THERE))
    assert ("guest_twice" in {each.name for each in drifting(row)}) is (power not in off)


@pytest.mark.parametrize("state", AttachmentState)
def test_a_host_is_to_have_connected_what_it_said_that_it_had(state: AttachmentState) -> None:
    """From its word on, whether or not Cinder has been told; not before, and not after."""
    row = attachment(ledger=replace(OURS, state=state), connected=False)
    said = state in {AttachmentState.CONNECTED, AttachmentState.ATTACHED}
    if state not in {AttachmentState.DELETED, AttachmentState.RENAMED}:  # they have no rows
        assert ("connection_missing" in {each.name for each in drifting(row)}) is said


def test_a_difference_that_is_being_mended_is_over_by_its_repair_alone() -> None:
    """A look between its steps sees nothing any more: whether it helped is not known yet."""
    drift_class, finding = BY_NAME["disk_missing"], Finding(uuid4())
    for look in "12":
        see(finding, drift_class, CASES[drift_class.name].drifts, Sight(look_id=look, position=1))
    begun = {"repair": "replug_disk", "by_operation": str(uuid4()), "reason": "it lacks it"}
    finding.record(Finding.RepairBegun, **begun)
    version, gone = finding.version, Sight(look_id="3", position=3, heard=frozenset({HERE}))
    miss(finding, gone)
    assert (finding.version, finding.state) == (version, FindingState.CONFIRMED)
    finding.record(Finding.RepairFailed, by_operation=begun["by_operation"], why="it would not")
    miss(finding, gone)
    assert finding.state is FindingState.OVER


@pytest.mark.parametrize("status", STATUSES)
def test_a_status_differs_or_is_stuck_by_whether_anybody_has_the_volume(status: str) -> None:
    """And of a volume that Cinder migrates, or that was never a server's, nothing is said."""
    found = [[c.name for c in drifting(volume(status, n, mappings=n))] for n in (1, 0)]
    assert [next(iter(names), None) for names in found] == list(STATUSES[status])
    assert max(map(len, found)) <= 1
    moving = replace(MADE, status=status, attachments=1, migration_status="migrating")
    assert drifting(replace(VOLUME, cinder=moving)) == []
    assert (
        drifting(volume(status, 1, mappings=0, had=False, cinder=replace(moving, made=False))) == []
    )


def test_what_is_to_last_is_confirmed_when_it_has_lasted_and_nothing_changed() -> None:
    stuck = BY_NAME[STUCK]
    assert apart_s(stuck) == WORKS_S > apart_s(BY_NAME[WRONG]) == APART_S
    row, finding = CASES[STUCK].drifts, Finding(uuid4())
    for since, state in (("1", "suspected"), ("2", "suspected"), ("2", "confirmed")):
        assert isinstance(row, VolumeRow)
        assert isinstance(row.cinder, CinderVolume)
        row = replace(row, cinder=replace(row.cinder, since=since))
        see(finding, stuck, row, Sight(look_id="l", position=1))
        assert finding.state == state


@pytest.mark.parametrize(
    ("drift_class", "party", "unsaid"),
    [
        ("disk_source_differs", "shown", {"recorded": None}),  # a busy guest
        ("disk_size_differs", "shown", {"size_bytes": None}),
        ("attachment_mode_differs", "cinder", {"mode": None}),  # Cinder refuses to show it alone
        ("volume_project_differs", "cinder", {"project_id": None}),
    ],
)
def test_what_is_not_told_at_times_is_neither_drift_nor_sound(
    drift_class: str, party: str, unsaid: dict[str, Any]
) -> None:
    row: Any = CASES[drift_class].drifts
    unknown = replace(row, **{party: replace(getattr(row, party), **unsaid)})
    assert BY_NAME[drift_class] not in drifting(unknown)
    assert BY_NAME[drift_class] not in sound(unknown)


@pytest.mark.parametrize("drift_class", ["disk_source_differs", "disk_size_differs"])
def test_a_disk_that_is_not_in_its_guest_any_more_does_not_differ(drift_class: str) -> None:
    row: Any = CASES[drift_class].drifts
    assert BY_NAME[drift_class] in sound(replace(row, shown=None))


def test_what_a_busy_guest_does_not_tell_of_its_disk_is_no_change() -> None:
    drift_class, finding = BY_NAME["disk_definition_differs"], Finding(uuid4())
    told: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "suspected"),
        ({"size_bytes": None}, "confirmed"),
        ({"size_bytes": 3 * GIB}, "suspected"),
    )
    for look, (changes, state) in enumerate(told):
        row = disk(persistent=None, **changes)
        see(finding, drift_class, row, Sight(look_id=str(look), position=1))
        assert finding.state == state


@pytest.mark.parametrize(
    ("size", "device", "cinder", "differs"),
    [
        (2 * GIB, 2 * GIB, 2, False),
        (2 * GIB, 3 * GIB, 2, False),  # the host knows of a growth that its guest waits for
        (8 * GIB, 8 * GIB, 2, False),  # a storage that rounds up
        (2 * GIB, None, 2, False),  # a file, or an image
        (2 * GIB - LUKS_HEAD, 2 * GIB, 2, False),
        (2 * GIB, 2 * GIB, 3, True),  # Cinder has extended it, and the guest was not told
        (2 * GIB, GIB, 2, True),  # what the guest writes at its end is nowhere
    ],
)
def test_a_guest_has_all_of_its_volume_and_no_more_than_its_device(
    size: int, device: int | None, cinder: int, differs: bool
) -> None:
    row = replace(disk(size_bytes=size, device_bytes=device), cinder=cinder)
    assert (BY_NAME["disk_size_differs"] in drifting(row)) is differs


def test_repairs_stop_while_it_is_not_known_whose_data_a_disk_is() -> None:
    stops = {each.name for each in CLASSES if each.stops_repairs}
    assert stops == {"disk_source_differs", "disk_size_differs", "disk_unlabelled"}
    assert all(BY_NAME[name].severity is Severity.CRITICAL for name in stops)
    assert all(BY_NAME[name].repair is None for name in stops)


@pytest.mark.parametrize("row", SOUND, ids=subject)
def test_what_is_sound_is_a_case_of_nothing(row: Row) -> None:
    assert [each.name for each in drifting(row)] == []


@pytest.mark.parametrize("drift_class", CLASSES, ids=named)
def test_every_class_says_what_it_means_and_what_to_do(drift_class: DriftClass) -> None:
    assert drift_class.meaning.endswith(".")
    assert drift_class.meaning[0].isupper()
    assert drift_class.parties
    assert drift_class.repair or drift_class.by_hand.endswith(".")


@pytest.mark.parametrize("drift_class", CLASSES, ids=named)
def test_a_repair_asks_again_whoever_was_compared_and_nothing_asks_without_one(
    drift_class: DriftClass,
) -> None:
    if drift_class.repair is None:
        assert drift_class.again == ()
    else:
        assert set(drift_class.parties) <= set(drift_class.again)


@pytest.mark.parametrize("drift_class", COMPARED, ids=named)
def test_a_finding_keeps_what_the_compared_parties_said_and_nobody_else(
    drift_class: DriftClass,
) -> None:
    told = differs(CASES[drift_class.name].drifts, drift_class.parties)
    assert set(told) == {party.value for party in drift_class.parties}


@pytest.mark.parametrize("ignored", [False, True])
def test_what_is_ignored_for_good_stays_so_when_its_host_reboots(ignored: bool) -> None:
    """Another life of a host confirms nothing, and changes nothing either."""
    drift_class, finding = BY_NAME["disk_missing"], Finding(uuid4())
    row = CASES[drift_class.name].drifts
    see(finding, drift_class, row, Sight(look_id="1", position=1, lives={HERE: {"boot_id": "a"}}))
    if ignored:
        finding.record(Finding.DriftIgnored, reason="it is to be so")
    see(finding, drift_class, row, Sight(look_id="2", position=2, lives={HERE: {"boot_id": "b"}}))
    assert finding.state is (FindingState.IGNORED if ignored else FindingState.SUSPECTED)
    see(finding, drift_class, row, Sight(look_id="3", position=3, lives={HERE: {"boot_id": "b"}}))
    assert finding.state is (FindingState.IGNORED if ignored else FindingState.CONFIRMED)


def test_the_commands_that_a_class_names_exist() -> None:
    texts = " ".join(f"{each.meaning} {each.by_hand}" for each in CLASSES)
    named = {each for each in re.findall(r"`([a-z]+ [a-z]+)`", texts) if "virsh" not in each}
    assert named
    assert named - set(COMMANDS) == set()


def test_the_brake_is_ten_or_a_hundredth_of_what_was_compared() -> None:
    many = {"disk_missing": 11, "volume_gone": 11, "remnant": 999}
    assert suppressed(many, {}) == {"disk_missing": 11, "volume_gone": 11}
    assert suppressed(many, {SUBJECTS[DiskRow].value: 1100}) == {"volume_gone": 11}
    assert suppressed(many, {SUBJECTS[DiskRow].value: 1099}) == {
        "disk_missing": 11,
        "volume_gone": 11,
    }


def test_the_brake_lets_go_of_the_classes_that_somebody_believes_alone() -> None:
    many = {"disk_missing": 11, "volume_gone": 11}
    assert suppressed(many, {}, ["disk_missing"]) == {"volume_gone": 11}
    assert suppressed(many, {}, [*many]) == {}


@pytest.mark.parametrize(
    ("scope", "count", "examples", "text"),
    [
        ({}, 2, ["a on h", "b on h"], "believed (a on h, b on h). "),
        ({}, 4, ["a", "b", "c"], "believed (a, b, c, ...). "),
        ({"host": "h1"}, 12, [], "believed. "),
    ],
    ids=["all are named", "some are named", "of a host, and none is named"],
)
def test_what_is_held_back_says_how_much_of_what_and_what_to_type(
    scope: dict[str, str], count: int, examples: list[str], text: str
) -> None:
    braked = {"guest_missing": count}
    [told] = held_back({"scope": scope, "braked": braked, "examples": {"guest_missing": examples}})
    assert told.startswith(f"guest_missing: {count} new findings are suppressed")
    assert text in told
    where = " --host h1" if scope else ""
    assert f"attachment-ledger drift run{where} --accept-many guest_missing --reason TEXT" in told
    nothing = {"scope": scope, "braked": None, "examples": None}  # as of a look before
    assert held_back(nothing) == held_back({**nothing, "braked": braked})[1:] == []
