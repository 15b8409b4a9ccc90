"""Repairs of drift: what each changes, what it refuses, and what it leaves to people.

Faults at every point of each repair are the generic tests' (test_every_flow).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from aggregates.attachment import Attachment
from aggregates.finding import Finding
from aggregates.operation import Operation, OperationState, Outcome
from handlers.drift import recheck
from handlers.drift.classes import CLASSES
from handlers.drift.repairs import REPAIRS
from handlers.drift.rows import UNKNOWN, Party, Subject
from handlers.engine.verbs import LedgerVerb
from handlers.flows import FLOWS
from host_agent.shared.contract.messages import Verb
from host_agent.shared.contract.ports import Disk
from host_agent.simulated.host_state import guest_state
from host_agent.storage.records import Record
from host_agent.verbs import VERBS
from ledger.reconcile import repair_effects
from tests.doubles.host_checks import plugged
from tests.flows import drifted
from tests.flows.drifted import finding
from tests.flows.drifts import DRIFTS
from tests.world import HOST, OTHER, World, events

LOOKS = {Verb.DRIFT_LOOK, LedgerVerb.DRIFT_AGAIN, LedgerVerb.CHECKPOINT}

BY_DRIFT = pytest.mark.parametrize("name", DRIFTS)


def _refused(world: World, ask: Callable[[World], str] = drifted.repair) -> dict[str, Any]:
    """A repair that does nothing; why."""
    before = world.summary()
    operation = world.run(ask(world))
    assert operation.outcome is Outcome.FAILED
    assert world.summary() == before
    heard = finding(world)
    assert (heard.state, heard.repairing) == ("confirmed", None)
    error = operation.first_error or {}
    assert events(world, Finding.RepairFailed)[-1].why == error["message"]
    return error


# --- the tables -------------------------------------------------------------------------------


def test_no_class_promises_a_repair_that_there_is_not() -> None:
    promised = {each for c in CLASSES for each in (c.repair, c.or_else) if each is not None}
    variants = {"drop_reservation", "replace_reservation"}
    assert promised | variants == set(REPAIRS) <= set(FLOWS)
    assert [c.name for c in CLASSES if (c.repair is None) != bool(c.by_hand)] == []


@pytest.mark.parametrize("repair", REPAIRS)
def test_every_repair_looks_again_before_it_does_anything(repair: str) -> None:
    steps = [step for stage in REPAIRS[repair].flow.stages for step in stage.steps]
    first = next(n for n, step in enumerate(steps) if step.do not in LOOKS)
    assert LedgerVerb.DRIFT_AGAIN in {step.do for step in steps[:first]}
    assert not {step.do for step in steps[first:]} & {Verb.DRIFT_LOOK, LedgerVerb.DRIFT_AGAIN}
    assert not {step.do for step in steps} & {Verb.DISK_UNPLUG, Verb.VOLUME_DISCONNECT}


@pytest.mark.parametrize("drift", [c for c in CLASSES if c.repair], ids=lambda c: c.name)
def test_a_repair_that_asks_a_host_again_has_a_step_that_does(drift: Any) -> None:
    verbs = {step.do for stage in FLOWS[drift.repair].stages for step in stage.steps}
    if Party.HOST in drift.again:
        assert Verb.DRIFT_LOOK in verbs


def test_a_drift_is_planted_for_every_repair() -> None:
    assert {drift.flow for drift in DRIFTS.values()} == set(REPAIRS)


# --- what is done -----------------------------------------------------------------------------


@BY_DRIFT
def test_a_repair_changes_what_was_wrong_and_nothing_else(name: str) -> None:
    drift = DRIFTS[name]
    world = drift.world()
    before, others = world.summary(), set(world.known_volumes())
    operation = world.run(drift.ask(world))
    after = world.summary()
    assert operation.started is not None
    assert (operation.started.flow, operation.outcome) == (drift.flow, "completed")
    assert {what for what in after if after[what] != before[what]} == set(drift.changes.split())
    assert set(world.known_volumes()) >= others - {world.volumes[0]}
    assert world.wrong() == []


@BY_DRIFT
def test_history_says_what_was_repaired_why_and_by_which_operation(name: str) -> None:
    drift = DRIFTS[name]
    world = drift.world()
    operation_id = drift.ask(world)
    begun = events(world, Finding.RepairBegun)[-1]
    assert (begun.by_operation, begun.reason) == (operation_id, "found by a look")
    world.done(operation_id)
    [repaired] = events(world, Finding.DriftRepaired)
    assert repaired.by_operation == operation_id
    started = events(world, Operation.OperationStarted)[-1].finding or {}
    known = finding(world)
    assert started["id"] == str(known.id)
    assert started["differs"] == known.differs
    together = [e for e, _ in world.store.log if e.originator_id in {known.id, UUID(operation_id)}]
    assert isinstance(together[-1], Finding.DriftRepaired)


def test_a_lost_attachment_that_is_replaced_is_the_same_connection() -> None:
    world = drifted.attachment_lost()
    [lost] = world.attachments()
    world.done(drifted.repair(world))
    [held] = world.attachments()
    gone = world.store.load(type(lost), lost.id)
    assert (held.id != lost.id, held.state, gone.state) == (True, "attached", "deleted")
    converted = [e for e in events(world, type(lost).Disconnected) if e.originator_id == lost.id]
    assert converted[-1].converted_to == str(held.id)
    assert "brick.disconnect" not in world.trouble.met
    assert "guests.unplug" not in world.trouble.met


@pytest.mark.parametrize(
    "left",
    [drifted.connection_left, partial(drifted.guest_missing, volumes=1)],
    ids=["connection_left", "guest_missing"],
)
def test_a_device_that_another_server_uses_stays_when_a_record_goes(left: Any) -> None:
    world = left(multiattach=True)
    [record] = world.records[HOST].values()
    other = str(UUID(int=7))
    world.records[HOST][other] = replace(record, attachment_id=other, server_id=other)
    connected = world.host.read()["connected"]
    told = len(events(world, Attachment.Disconnected))
    world.done(drifted.repair(world))
    assert all(event.shared for event in events(world, Attachment.Disconnected)[told:])
    assert list(world.records[HOST]) == [other]
    assert world.host.read()["connected"] == connected


def test_a_guest_keeps_the_disk_that_it_has_by_another_attachment_when_a_record_goes() -> None:
    world = drifted.connection_left_beside()
    [held] = world.attachments()
    before = world.host.read()
    world.done(drifted.repair(world))
    assert list(world.records[HOST]) == [str(held.id)]
    assert world.host.read() == before
    assert not {"brick.disconnect", "guests.unplug"} & set(world.trouble.met)


# --- what is not so any more ------------------------------------------------------------------


def _move_row(world: World) -> None:
    world.cinder.attachments_of(world.volumes[1])[0].host = "compute-3"


def _volume_back(world: World) -> None:
    drifted._raw(world, world.volumes[0])


def _complete(world: World) -> None:
    [row] = world.cinder.attachments_of(world.volumes[0])
    world.cinder.attachment_complete(row.id)


def _settle(world: World) -> None:
    world.cinder.volume(world.volumes[0]).status = "in-use"


def _remove_guest(world: World) -> None:
    with world.host.edit() as state:
        del state["guests"][world.server_id]


def _drop_record(world: World) -> None:
    world.records[HOST].clear()


def _define_like_live(world: World) -> None:
    with world.host.edit() as state:
        guest = state["guests"][world.server_id]
        guest["persistent"] = guest["live"]


@pytest.mark.parametrize(
    ("name", "heal", "code"),
    [
        ("repair-attachment", _move_row, recheck.CHANGED),
        ("repair-taken-back", _complete, recheck.GONE),
        ("repair-detaching", _settle, recheck.GONE),
        ("repair-volume", _volume_back, recheck.CHANGED),
        ("repair-guest", _remove_guest, recheck.GONE),
        ("repair-connection", _drop_record, recheck.GONE),
        ("repair-disk-undefined", _define_like_live, recheck.GONE),
    ],
)
def test_what_is_not_so_any_more_is_not_repaired(
    name: str, heal: Callable[[World], None], code: str
) -> None:
    world = DRIFTS[name].world()
    heal(world)
    error = _refused(world, DRIFTS[name].ask)
    assert error["code"] == code
    assert "Nothing was changed" in error["message"]


@pytest.mark.parametrize(
    ("name", "subject", "untold", "who"),
    [
        ("repair-reservation", Subject.ATTACHMENT, "cinder", "Cinder"),
        ("repair-disk-pulled", Subject.DISK, "shown", f"Host {HOST}"),
    ],
)
def test_a_repair_names_who_did_not_answer(
    name: str, subject: Subject, untold: str, who: str
) -> None:
    world = DRIFTS[name].world()
    row: Callable[..., Any] = repair_effects._ROWS[subject]
    silent = {subject: lambda *about: replace(row(*about), **{untold: UNKNOWN})}
    with patch.dict(repair_effects._ROWS, silent):
        error = _refused(world, DRIFTS[name].ask)
    assert error["code"] == recheck.UNPROVEN
    assert error["message"].startswith(f"{who} did not answer. Nothing was changed; run")


@pytest.mark.parametrize("name", ["process", "readonly_live", "readonly_persistent"])
def test_a_host_that_leaves_out_a_field_proves_nothing(name: str) -> None:
    look = VERBS[Verb.DRIFT_LOOK]

    def told(*of: Any) -> dict[str, Any]:
        return {"shown": {key: has for key, has in look(*of)["shown"].items() if key != name}}

    drift = DRIFTS["repair-attachment"]
    with patch.dict(VERBS, {Verb.DRIFT_LOOK: told}):
        error = _refused(drift.world(), drift.ask)
    assert error["code"] == recheck.UNPROVEN
    assert "cannot be read" in error["message"]


def _row_back(world: World) -> None:
    """As if Cinder's database had been restored."""
    [held] = world.attachments()
    row = world.cinder.attachment_create(world.volumes[0], world.server_id, {"host": HOST})
    del world.cinder.attachments[row.id]
    row.id = str(held.id)
    world.cinder._by_volume[world.volumes[0]].clear()
    world.cinder.put_attachment(row)


def _attach(world: World) -> None:
    world.done(world.attach())


def _plug(world: World) -> None:
    """Repaired, and found once more by looks that were late."""
    world.done(drifted.repair(world))
    drifted.found(world, "disk_missing", drifted.disk_row(world, None))


@pytest.mark.parametrize(
    ("name", "heal"),
    [("repair-disk-pulled", _plug), ("repair-secret", _attach), ("repair-lost", _row_back)],
)
def test_what_came_right_meanwhile_is_not_repaired(
    name: str, heal: Callable[[World], None]
) -> None:
    world = DRIFTS[name].world()
    heal(world)
    assert _refused(world)["code"] == recheck.GONE


# --- what hosts have --------------------------------------------------------------------------


def _record_on(host: str) -> Callable[[World], None]:
    def plant(world: World) -> None:
        volume_id, id_ = world.volumes[-1], str(UUID(int=9))
        world.records[host][id_] = Record(
            attachment_id=id_, volume_id=volume_id, server_id=world.server_id, serial=volume_id
        )

    return plant


def _own_record(world: World) -> None:
    about = finding(world).about()
    id_, volume_id = str(about.attachment_id), world.volumes[-1]
    world.records[OTHER][id_] = Record(
        attachment_id=id_, volume_id=volume_id, server_id=world.server_id, serial=volume_id
    )


def _disk_of_another_guest(world: World) -> None:
    """Somebody attached it by hand, under its id, to another guest of the other host."""
    _disk_of(world, str(UUID(int=8)))


def _disk_of_the_server_elsewhere(world: World) -> None:
    """A move that nobody has seen end."""
    _disk_of(world, world.server_id)


def _disk_of(world: World, other: str) -> None:
    with world.hosts[OTHER].edit() as state:
        state["guests"][other] = guest_state(server_id=other)
    drifted.connect(world, OTHER, world.volumes[-1])
    path = next(iter(world.hosts[OTHER].read()["connected"].values()))["path"]
    disk = Disk(
        serial=world.volumes[-1],
        source={"type": "block", "path": path},
        device_name="vdb",
        bus="virtio",
    )
    drifted._guests(world, OTHER).plug(other, disk)


def _unexplained_disk(world: World) -> None:
    """The server's guest has a disk under another volume's id, as after a swap by hand."""
    world.records[HOST].clear()


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (_record_on(HOST), f"Host {HOST} has volume"),
        (_record_on(OTHER), f"Host {OTHER} has volume"),
        (_own_record, f"Host {OTHER} has volume"),
        (_disk_of_another_guest, f"Host {OTHER} has volume"),
        (_unexplained_disk, "no record explains"),
        (_disk_of_the_server_elsewhere, f"on host {OTHER} has a disk of volume"),
    ],
)
@pytest.mark.parametrize("multiattach", [False, True])
def test_no_attachment_is_deleted_that_a_host_may_use(
    plant: Callable[[World], None], words: str, multiattach: bool
) -> None:
    """CVE-2023-2088: whoever may have it is asked, and one of them says so."""
    if multiattach and plant is _disk_of_another_guest:
        pytest.skip("rightly, it is another server's")
    world = drifted.attachment_unknown(multiattach=multiattach)
    plant(world)
    error = _refused(world)
    assert error["code"] == recheck.UNPROVEN
    assert words in error["message"]


@pytest.mark.parametrize(
    ("host", "complete", "records"),
    [(HOST, True, 1), (OTHER, False, 1), (OTHER, True, 2)],
    ids=["its own host", "not told", "a foreign record"],
)
def test_no_attachment_is_deleted_beside_the_servers_own_unless_it_is_another_hosts(
    host: str, complete: bool, records: int
) -> None:
    """On one host both have one connection, which its deletion ends."""
    world = drifted.attachment_unknown_beside(host, complete=complete)
    if records > 1:
        _record_on(HOST)(world)
    assert f"on host {HOST} has a disk of volume" in _refused(world)["message"]


@pytest.mark.parametrize("name", ["repair-attachment", "repair-owner-gone", "repair-connection"])
def test_nothing_is_let_go_of_while_qemu_runs_where_libvirt_has_lost_the_guest(name: str) -> None:
    """Nobody sees which disks it has, and it writes to them."""
    world = DRIFTS[name].world()
    with world.host.edit() as state:
        state["guests"].pop(world.server_id, None)
        state["processes"] = [world.server_id]
    error = _refused(world)
    assert error["code"] == recheck.UNPROVEN
    assert f"Host {HOST} runs a process of the guest" in error["message"]


def test_a_volume_that_others_have_is_in_use_after_a_deletion_that_came_too_late() -> None:
    world = drifted.attachment_unknown_beside()
    operation_id, delete = drifted.repair(world), world.cinder.attachment_delete

    def overtaken(id_: str) -> Any:
        delete(id_)
        world.cinder.volume(world.volumes[0]).status = "detaching"
        return delete(id_)

    with patch.object(world.cinder, "attachment_delete", overtaken):
        world.done(operation_id)
    assert world.cinder.volume(world.volumes[0]).status == "in-use"


def test_what_cinder_says_it_deleted_and_still_has_is_not_repaired() -> None:
    """LP 1935057: Cinder answers well, and the row stays."""
    world = drifted.attachment_unknown()
    rows = list(world.cinder.attachments.values())
    with patch.object(world.cinder, "attachment_delete", lambda id_: rows):
        operation = world.run(drifted.repair(world))
    assert (operation.first_error or {})["code"] == "attachment_left"
    assert finding(world).state == "confirmed"


def test_what_another_server_rightly_has_of_a_shared_volume_is_in_nobodys_way() -> None:
    world = drifted.attachment_unknown(multiattach=True)
    _disk_of_another_guest(world)
    world.done(drifted.repair(world))
    assert finding(world).state == "over"


def test_a_record_of_a_swaps_former_volume_goes_while_its_disk_is_on_the_new_one() -> None:
    world = drifted.connection_left_by_a_swap()
    before = plugged(world.host)
    world.done(drifted.repair(world))
    assert (finding(world).state, len(world.records[HOST])) == ("over", 1)
    assert (plugged(world.host), world.wrong()) == (before, [])


def test_all_hosts_that_ever_had_a_volume_of_the_server_are_asked() -> None:
    world = World(volumes=2)
    world.done(world.attach(world.volumes[0]))
    world.done(world.act("live_migrate", destination=OTHER))
    made = drifted._raw(world, world.volumes[1], HOST)
    drifted._unknown("attachment_unknown", HOST)(world, made)
    world.cinder.attachment_complete(made)
    operation = world.operation(drifted.repair(world))
    assert [lane.host for lane in operation.lanes] == [HOST, OTHER]
    world.done(str(operation.id))


def test_a_disk_that_is_another_device_by_now_is_not_told_to_cinder_as_in_use() -> None:
    """While nobody held the volume the array may have given its LUN to somebody else."""
    world = drifted.attachment_lost()
    world.cinder.volume(world.volumes[0]).name_id = str(UUID(int=5))
    operation = world.run(drifted.repair(world))
    assert operation.state is OperationState.PARKED
    assert [left["error"]["code"] for left in operation.left if left["error"]] == ["other_device"]
    [row] = world.cinder.attachments_of(world.volumes[0])
    assert row.status == "attaching"


@pytest.mark.parametrize(
    ("world", "more", "words"),
    [
        (drifted.attachment_lost, {"repair": "forget_attachment"}, "replace_attachment"),
        (drifted.attachment_lost_everywhere, {}, "forget_attachment"),
    ],
)
def test_whether_a_lost_attachment_is_kept_or_forgotten_is_the_guests_to_say(
    world: Callable[[], World], more: dict[str, Any], words: str
) -> None:
    error = _refused(world(), lambda w: drifted.repair(w, **more))
    assert error["code"] == recheck.UNPROVEN
    assert words in error["message"]


def test_nothing_is_disconnected_that_a_guest_still_has() -> None:
    world = drifted.connection_left()
    [record] = world.records[HOST].values()
    path = next(iter(world.host.read()["connected"].values()))["path"]
    disk = Disk(
        serial=record.serial,
        source={"type": "block", "path": path},
        device_name="vdb",
        bus="virtio",
    )
    drifted._guests(world).plug(world.server_id, disk)
    assert _refused(world)["code"] == recheck.UNPROVEN
