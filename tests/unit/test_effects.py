"""What the ledger's own steps ask Cinder for, and what they leave alone."""

from __future__ import annotations

from dataclasses import replace
from inspect import isfunction
from typing import Any
from uuid import UUID, uuid4

import pytest

from aggregates.attachment import Attachment
from aggregates.volume import Volume
from handlers.engine.verbs import LedgerVerb
from host_agent.shared.contract.lane import Lane, LaneSide, VolumeSeen
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import (
    LATE_S,
    AttachmentView,
    OldAttachment,
    PortError,
    VolumeView,
)
from ledger.core.effects import EFFECTS, carry_out
from ledger.core.steps import attachments, reimage, snapshots, volumes
from ledger.core.steps.context import EffectContext
from ledger.reconcile import repair_effects

SERVER, VOLUME, BDM = str(uuid4()), str(uuid4()), str(uuid4())
LANE = Lane(
    server_id=SERVER, volume_id=VOLUME, bdm_id=BDM, attachment_id=None, device_name="vdb", host="h"
)
RESERVE, DELETE = LedgerVerb.ATTACHMENT_RESERVE, LedgerVerb.ATTACHMENT_DELETE


def test_each_function_of_a_step_has_the_name_of_a_verb() -> None:
    """By which it is found: one that nobody finds would be a step that does nothing."""
    found = {
        name
        for file in (attachments, volumes, reimage, snapshots, repair_effects)
        for name, each in vars(file).items()
        if isfunction(each) and not name.startswith("_")
        if each.__annotations__.get("context") == "EffectContext"
        if each.__annotations__["return"] == "dict[str, Any]"
    }
    assert found == set(EFFECTS)
    assert len(found) > 20


class Cinder:
    """Both ports: one volume's attachments and status; calls that change anything are noted."""

    def __init__(self, *rows: AttachmentView, status: str = "available") -> None:
        self.rows, self.status = list(rows), status
        self.old: list[OldAttachment] = []
        self.made: list[VolumeView] = []
        self.looks = 0
        self.asked: list[tuple[str, ...]] = []
        self.refuses: PortError | None = None

    def attachments(self, volume_id: str | None, server_id: str) -> list[AttachmentView]:
        self.looks += 1
        assert server_id == SERVER
        assert volume_id in {VOLUME, *(volume.id for volume in self.made)}
        return self.rows

    def attachment(self, attachment_id: str) -> AttachmentView:
        return next(row for row in self.rows if row.id == attachment_id)

    def volume(self, volume_id: str) -> VolumeView:
        return view(id=volume_id, status=self.status)

    def volumes_made(self, mark: str, project_id: str | None) -> list[VolumeView]:
        assert (mark, project_id) == (BDM, "p")
        return self.made

    def volume_create(self, create: dict[str, Any], mark: str) -> str:
        self.asked.append(("volume_create", mark))
        return str(uuid4())

    def old_attachments(self, volume_id: str) -> list[OldAttachment]:
        assert volume_id == VOLUME
        return self.old

    def attachment_create(
        self, volume_id: str, server_id: str, connector: dict[str, Any] | None, mode: str
    ) -> AttachmentView:
        assert connector is None, "it becomes reserved, and no more"
        self.asked.append(("attachment_create", volume_id, server_id, mode))
        return row()

    def attachment_delete(self, attachment_id: str) -> None:
        self.asked.append(("attachment_delete", attachment_id))
        if self.refuses is not None:
            raise self.refuses
        self.rows = [row for row in self.rows if row.id != attachment_id]

    def __getattr__(self, call: str) -> Any:
        def noted(*args: str) -> None:
            self.asked.append((call, *args))
            if self.refuses is not None:
                raise self.refuses

        return noted


class Book:
    """What the ledger knows."""

    def __init__(self, *known: Any) -> None:
        self._known = {(type(each), str(each.id)): each for each in known}

    def get(self, kind: type[Any], id: str | UUID) -> Any:  # noqa: A002
        return self._known.get((kind, str(id))) or kind(kind.id_of(str(id)))

    def add(self, aggregate: Any) -> None:
        self._known[type(aggregate), str(aggregate.id)] = aggregate


def row(status: str = "reserved", **over: Any) -> AttachmentView:
    facts = {"id": str(uuid4()), "volume_id": VOLUME, "server_id": SERVER, "connection_info": {}}
    return AttachmentView(status=status, **{**facts, **over})


def view(**over: Any) -> VolumeView:
    facts: dict[str, Any] = {
        **dict.fromkeys(("service_uuid", "availability_zone", "project_id", "name"), None),
        "id": VOLUME,
        "status": "available",
        "size_gb": 1,
        "migration_status": None,
        **dict.fromkeys(
            ("multiattach", "shared_targets", "bootable", "encrypted", "readonly"), False
        ),
    }
    return VolumeView(**{**facts, **over})


def known(attachment_id: str) -> Attachment:
    attachment = Attachment(UUID(attachment_id))
    attachment.record(Attachment.AttachmentCreated, volume_id=VOLUME, server_id=SERVER)
    return attachment


def held(*servers: str) -> Volume:
    volume = Volume(UUID(VOLUME))
    for server_id in servers:
        attachment_id = str(uuid4())
        volume.record(Volume.Held, server_id=server_id, attachment_id=attachment_id)
    return volume


def do(
    verb: str, cinder: Cinder, *known: Any, lane: Lane = LANE, uncertain: bool = False, **more: Any
) -> dict[str, Any]:
    """What the effect gives; raises what it fails with."""
    context = EffectContext(
        cinder=cinder,  # type: ignore[arg-type]
        book=Book(*known),
        uncertain=uncertain,
        first=more.get("first", False),
        wait=more.get("wait", lambda _: None),
    )
    result = carry_out("step", verb, lane, context)
    if result.error is not None:
        raise PortError(result.error.kind, result.error.code, result.error.message)
    return result.outputs


# --- reserve -------------------------------------------------------------------------------


def test_a_bare_reservation_that_nobody_knows_is_taken_for_ours() -> None:
    cinder = Cinder(unknown := row())
    assert do(RESERVE, cinder) == {"attachment_id": unknown.id, "adopted": True}
    assert cinder.asked == []


@pytest.mark.parametrize(
    "other",
    [
        row("attached"),
        row("attaching"),
        row("reserved", connection_info={"driver_volume_type": "iscsi"}),
    ],
    ids=["attached", "attaching", "connected"],
)
def test_an_attachment_that_is_more_than_a_reservation_is_left_alone(other: AttachmentView) -> None:
    """Somebody uses it; adopted, it would be deleted when the attach is undone."""
    cinder = Cinder(other)
    assert do(RESERVE, cinder)["attachment_id"] != other.id
    assert cinder.asked == [("attachment_create", VOLUME, SERVER, LANE.access_mode)]


def _seen(status: str) -> tuple[VolumeSeen, ...]:
    facts: dict[str, Any] = {"size_gb": 1, "multiattach": False, "shared_targets": False}
    return (VolumeSeen(id=VOLUME, at=0.0, status=status, service_uuid=None, **facts),)


@pytest.mark.parametrize(
    ("lane", "looks"),
    [
        (replace(LANE, seen=_seen("available")), 0),
        (replace(LANE, seen=_seen("reserved")), 1),
        (replace(LANE, seen=_seen("in-use")), 1),
        (LANE, 1),
        (replace(LANE, other=LaneSide(volume_id=VOLUME, attachment_id="theirs")), 0),  # a move
        (replace(LANE, other=LaneSide(volume_id=str(uuid4()))), 1),  # a swap
        (replace(LANE, create={"size_gb": 1}), 0),
    ],
)
def test_a_first_attempt_looks_for_reservations_where_there_can_be_one(
    lane: Lane, looks: int
) -> None:
    cinder = Cinder()
    assert "adopted" not in do(RESERVE, cinder, lane=lane, first=True)
    assert cinder.looks == looks
    do(RESERVE, cinder, lane=lane)
    assert cinder.looks == looks + 1, "a later one always does"


def test_a_volume_is_not_looked_for_before_it_is_first_asked_for() -> None:
    cinder, lane = Cinder(), replace(LANE, create={"size_gb": 1, "project_id": "p"})
    cinder.made = [view(id=str(uuid4()), status="deleting")]
    do(LedgerVerb.VOLUME_CREATE, cinder, lane=lane, first=True)
    assert cinder.asked == [("volume_create", BDM)]


def test_of_two_reservations_that_nobody_knows_one_is_taken_and_the_other_ended() -> None:
    """Of two attempts both may come late (seed 1907)."""
    cinder = Cinder(first := row(), second := row())
    assert do(RESERVE, cinder) == {"attachment_id": first.id, "adopted": True}
    assert cinder.asked == [("attachment_delete", second.id)]


def test_a_reservation_in_another_mode_is_an_earlier_attachs_and_is_ended() -> None:
    """Adopted, the volume would be read-only in Cinder, and not for the guest (seed 1839)."""
    cinder = Cinder(read_only := row(mode="ro"), row("attached", mode="ro"))
    assert "adopted" not in do(RESERVE, cinder)
    assert cinder.asked == [
        ("attachment_create", VOLUME, SERVER, "rw"),
        ("attachment_delete", read_only.id),
    ]
    cinder = Cinder(read_only, fits := row(mode="rw"))
    assert do(RESERVE, cinder)["attachment_id"] == fits.id
    assert cinder.asked == [("attachment_delete", read_only.id)]


def test_a_reservation_that_the_ledger_knows_is_not_taken_again() -> None:
    cinder = Cinder(ours := row())
    assert do(RESERVE, cinder, known(ours.id))["attachment_id"] != ours.id


def test_a_reservation_of_unknown_outcome_is_given_time_before_another_is_made() -> None:
    cinder, waited, late = Cinder(), list[float](), row()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if sum(waited) >= LATE_S - 0.5:
            cinder.rows = [late]

    assert do(RESERVE, cinder, uncertain=True, wait=wait)["attachment_id"] == late.id
    assert cinder.asked == []
    cinder.rows, waited[:] = [], []
    cinder.looks = 0
    assert "adopted" not in do(RESERVE, cinder, uncertain=True, wait=waited.append)
    assert (cinder.looks, waited) == (1 + round(LATE_S / 0.25), [0.25] * cinder.looks)
    waited.clear()
    do(RESERVE, cinder, wait=waited.append)
    assert waited == [], "a first attempt does not wait"


# --- delete ----------------------------------------------------------------------------------


def test_with_an_attachment_goes_what_nobody_knows_and_nothing_else() -> None:
    ours, unknown, used, other = row("attached"), row(), row("attached"), row()
    cinder = Cinder(ours, unknown, used, other)
    lane = replace(LANE, attachment_id=ours.id)
    assert do(DELETE, cinder, known(ours.id), known(other.id), lane=lane) == {
        "ended": {unknown.id: VOLUME}
    }
    assert cinder.asked == [("attachment_delete", ours.id), ("attachment_delete", unknown.id)]


def test_what_the_host_has_deleted_already_is_not_asked_for_again() -> None:
    deleted = known(str(uuid4()))
    deleted.record(Attachment.Deleted)
    cinder = Cinder()
    assert do(DELETE, cinder, deleted, lane=replace(LANE, attachment_id=str(deleted.id))) == {}
    assert cinder.asked == []


@pytest.mark.parametrize("verb", [DELETE, LedgerVerb.RESERVATION_TIDY])
def test_what_may_still_come_is_given_time_before_it_is_looked_for(verb: str) -> None:
    cinder, waited = Cinder(), list[float]()

    def wait(seconds: float) -> None:
        assert cinder.looks == 0
        waited.append(seconds)

    do(verb, cinder, uncertain=True, wait=wait)
    assert (waited, cinder.looks) == ([LATE_S], 1)


# --- the old calls -----------------------------------------------------------------------------

OLD = replace(LANE, attachment_id=str(uuid4()), legacy=True)


def test_an_old_reservation_is_made_once() -> None:
    """The volume is `attaching` from its reservation on, and the claim says whose that is."""
    for status, asked in (("available", [("reserve", VOLUME)]), ("attaching", [])):
        cinder = Cinder(status=status)
        assert str(UUID(do(RESERVE, cinder, lane=OLD)["attachment_id"])) != OLD.attachment_id
        assert cinder.asked == asked


def test_old_rows_of_other_servers_stay() -> None:
    cinder = Cinder(status="in-use")
    cinder.old = [
        OldAttachment(id="theirs", server_id=str(uuid4()), host_name="h"),
        OldAttachment(id="ours", server_id=SERVER, host_name="h"),
    ]
    do(DELETE, cinder, lane=OLD)
    assert [asked for asked in cinder.asked if asked[0] == "detach"] == [("detach", VOLUME, "ours")]


@pytest.mark.parametrize(("status", "asked"), [("attaching", 1), ("in-use", 0), ("available", 0)])
def test_an_old_reservation_is_ended_only_where_there_is_one(status: str, asked: int) -> None:
    cinder = Cinder(status=status)
    do(DELETE, cinder, lane=OLD)
    assert cinder.asked == [("unreserve", VOLUME)] * asked


@pytest.mark.parametrize("theirs", [True, False])
def test_an_old_attachment_is_completed_for_a_fenced_host_if_cinder_has_no_row(
    theirs: bool,
) -> None:
    attachment = known(str(OLD.attachment_id))
    attachment.record(Attachment.ConnectorUpdated, host="compute-1")
    cinder = Cinder()
    holder = str(uuid4()) if theirs else SERVER
    cinder.old = [OldAttachment(id="row", server_id=holder, host_name="h")]
    do(LedgerVerb.ATTACHMENT_COMPLETE, cinder, attachment, lane=OLD)
    asked = [("attach", VOLUME, SERVER, "/dev/vdb", "compute-1", "rw")]
    assert cinder.asked == (asked if theirs else [])


@pytest.mark.parametrize(
    ("status", "connected", "asked"),
    [("attaching", True, 1), ("attached", True, 0), ("reserved", False, 0)],
)
def test_an_attachment_is_completed_for_a_fenced_host_once_if_that_had_it(
    status: str, connected: bool, asked: int
) -> None:
    cinder, ours = Cinder(shown := row(status)), known(shown.id)
    if connected:
        ours.record(Attachment.ConnectorUpdated, host="compute-1")
    do(LedgerVerb.ATTACHMENT_COMPLETE, cinder, ours, lane=replace(LANE, attachment_id=shown.id))
    assert cinder.asked == [("attachment_complete", shown.id)] * asked


# --- volumes -------------------------------------------------------------------------------------

MAKES = replace(LANE, create={"project_id": "p"})


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("holders", [(), (SERVER,), (str(uuid4()),)], ids=["none", "it", "other"])
def test_a_volume_goes_with_its_server_if_it_is_to_and_the_server_holds_it_no_more(
    wanted: bool, holders: tuple[str, ...]
) -> None:
    """By the last of its attachments; that another server holds it is Cinder's to refuse."""
    cinder = Cinder()
    lane = replace(LANE, delete_on_termination=wanted)
    told = do(LedgerVerb.VOLUME_DELETE, cinder, held(*holders), lane=lane)
    goes = wanted and SERVER not in holders
    assert cinder.asked == ([("volume_delete", VOLUME)] if goes else [])
    assert told == ({"deleted": [VOLUME]} if goes else {})


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_only_a_refusal_to_delete_a_volume_is_noted_and_no_failure(kind: ErrorKind) -> None:
    cinder = Cinder()
    cinder.refuses = PortError(kind, "refused", "it has snapshots")
    lane = replace(LANE, delete_on_termination=True)
    if kind is ErrorKind.FINAL:
        assert do(LedgerVerb.VOLUME_DELETE, cinder, lane=lane) == {"refused": "it has snapshots"}
        return
    with pytest.raises(PortError) as raised:
        do(LedgerVerb.VOLUME_DELETE, cinder, lane=lane)
    assert raised.value.kind is kind


@pytest.mark.parametrize(
    ("now", "code"), [("retyping", "volume_not_ready"), ("error_deleting", None), (None, None)]
)
def test_a_refusal_that_lasts_while_cinder_is_at_work_is_none(
    now: str | None, code: str | None
) -> None:
    """None: it is gone meanwhile."""
    cinder = Cinder(status=now or "")
    cinder.refuses = PortError(ErrorKind.FINAL, "refused", "Volume is busy.")
    if now is None:

        def gone(_: str) -> Any:
            raise PortError(ErrorKind.FINAL, "not_found", "No such volume.")

        vars(cinder)["volume"] = gone
    lane = replace(LANE, delete_on_termination=True)
    if code is None:
        assert do(LedgerVerb.VOLUME_DELETE, cinder, lane=lane) == {"refused": "Volume is busy."}
        return
    with pytest.raises(PortError, match=f"Volume {VOLUME} is {now}") as raised:
        do(LedgerVerb.VOLUME_DELETE, cinder, lane=lane)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.RETRYABLE, code)


@pytest.mark.parametrize("attachment_id", [None, str(uuid4())], ids=["unknown", "known"])
def test_of_an_old_reservation_only_one_that_nobody_knows_is_tidied_away(
    attachment_id: str | None,
) -> None:
    cinder = Cinder(status="attaching")
    lane = replace(LANE, legacy=True, attachment_id=attachment_id)
    assert do(LedgerVerb.RESERVATION_TIDY, cinder, lane=lane) == {}
    assert cinder.asked == ([] if attachment_id else [("unreserve", VOLUME)])
