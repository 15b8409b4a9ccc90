"""Servers as `/v2.1/servers` shows them."""

from __future__ import annotations

from collections.abc import Callable

from aggregates.instance import Instance, VmState
from aggregates.server import DEFAULT_DETAILS, RESET, faults_after, merge_details
from aggregates.server import VM_STATE_OF as VM_STATE_OF_POWER_STATE
from host_agent.shared.contract.definition import size_of
from projections.base import LoggedEvent, Projection, Row, origin_of, originator

_I = Instance
_NO_DISKS: Row = {"devices": [], "volumes": []}


def _fold(row: Row | None, event: LoggedEvent) -> Row:
    row = {**(row or _new(event)), **event.stamp}
    if event.topic in _CHANGES:
        changed = _CHANGES[event.topic](row, event.body)
        row.update(changed)
        if "definition" in changed:
            row["vcpus"], row["memory_mb"] = size_of(row["definition"])
    if event.topic == _I.ServerSeen.TOPIC:
        if row["origin"] is None:  # what a host has shown of it before is nobody's word
            row |= {**_NO_DISKS, "elsewhere": {}, "shown_by": None}
        row["origin"] = origin_of(event)
    row["vm_state"] = _vm_state(row)
    return row


def _new(event: LoggedEvent) -> Row:
    return {
        "server_id": event.originator_id,
        "project_id": event.body["project_id"],
        "user_id": event.body["user_id"],
        "base_vm_state": VmState.BUILDING,
        "power_state": "nostate",
        **_NO_DISKS,
        "definition": None,
        "vcpus": 0,
        "memory_mb": 0,
        "shown_by": None,
        **DEFAULT_DETAILS,
        "locked_by": None,
        "locked_reason": None,
        "faults": {},
        "claims": {},
        "resize_source": None,
        "elsewhere": {},
        "deleted": False,
        "origin": origin_of(event),
        "created_at": event.recorded_at,
    }


def _vm_state(row: Row) -> str:
    """As Instance.vm_state."""
    if row["deleted"]:
        return VmState.DELETED
    if row.get("origin"):
        return str(row["base_vm_state"])
    if row["faults"]:
        return VmState.ERROR
    if row["host"] is None:
        return VmState.SHELVED_OFFLOADED
    return VmState.RESIZED if row["resize_source"] else row["base_vm_state"]


def _observed(row: Row, body: Row) -> Row:
    seen = {name: body[name] for name in ("name", "host", "devices", "volumes")}
    seen["elsewhere"] = _but(row["elsewhere"], body["host"])
    return {**seen, **_power(row, body["power_state"])}


def _but(shown: Row, host: str) -> Row:
    """The hosts that show the guest, except one."""
    return {name: power for name, power in shown.items() if name != host}


def _power(row: Row, power_state: str) -> Row:
    base = VM_STATE_OF_POWER_STATE.get(power_state, row["base_vm_state"])
    return {"power_state": power_state, "base_vm_state": base}


def _defined(row: Row, body: Row) -> Row:
    asked = {name: body[name] for name in ("name", "host", "definition")}
    return {**asked, **_described(row, body)}


def _described(row: Row, changed: Row) -> Row:
    """The columns have the names of the details."""
    named = {"name": changed["name"]} if "name" in changed else {}
    return {**merge_details({name: row[name] for name in DEFAULT_DETAILS}, changed), **named}


def _claimed(row: Row, body: Row) -> Row:
    claim = {"exclusive": body["exclusive"], "flow": body["flow"]}
    return {"claims": {**row["claims"], body["claimant"]: claim}}


def _deletion_awaited(row: Row, body: Row) -> Row:
    """Shows the claim of the deletion that has been accepted but not started."""
    return _claimed(row, {"claimant": body["operation_id"], "exclusive": True, "flow": "delete"})


def _without(row: Row, column: str, body: Row) -> Row:
    return {column: {k: v for k, v in row[column].items() if k != body["claimant"]}}


_CHANGES: dict[str, Callable[[Row, Row], Row]] = {
    _I.InstanceRegistered.TOPIC: lambda row, body: {
        **_observed(row, body),
        "shown_by": body["host"],
    },
    _I.InstanceObserved.TOPIC: _observed,
    _I.ServerSeen.TOPIC: lambda _, body: {
        **{name: body[name] for name in ("name", "host", "power_state", "project_id", "user_id")},
        "base_vm_state": body["vm_state"],
        "deleted": False,
    },
    _I.Adopted.TOPIC: lambda _row, _body: {"origin": None},
    _I.HandedBack.TOPIC: lambda _, body: {"origin": body["to"]},
    _I.Defined.TOPIC: _defined,
    _I.Described.TOPIC: lambda row, body: _described(row, body["changed"]),
    _I.Locked.TOPIC: lambda _, body: {"locked_by": body["by"], "locked_reason": body["reason"]},
    _I.Unlocked.TOPIC: lambda _row, _body: {"locked_by": None, "locked_reason": None},
    _I.StateReset.TOPIC: lambda row, body: {"faults": faults_after(row["faults"], body["state"])},
    _I.DefinitionChanged.TOPIC: lambda _, body: {"definition": body["definition"]},
    _I.Placed.TOPIC: lambda row, body: {
        "host": body["host"],
        "elsewhere": _but(row["elsewhere"], body["host"]),
        "faults": {claimant: text for claimant, text in row["faults"].items() if claimant != RESET},
        **_power(row, body["power_state"]),
    },
    _I.Offloaded.TOPIC: lambda row, _: {"host": None, **_NO_DISKS, **_power(row, "shutdown")},
    _I.SeenElsewhere.TOPIC: lambda row, body: {
        "elsewhere": {**row["elsewhere"], body["host"]: body["power_state"]}
    },
    _I.GoneElsewhere.TOPIC: lambda row, body: {"elsewhere": _but(row["elsewhere"], body["host"])},
    _I.Resized.TOPIC: lambda _, body: {"resize_source": body["source"]},
    _I.ResizeSettled.TOPIC: lambda _row, _body: {"resize_source": None},
    _I.Deleted.TOPIC: lambda _row, _body: {"deleted": True},
    _I.Faulted.TOPIC: lambda row, body: {
        "faults": {**row["faults"], body["claimant"]: body["message"]}
    },
    _I.FaultCleared.TOPIC: lambda row, body: _without(row, "faults", body),
    _I.Claimed.TOPIC: _claimed,
    _I.DeletionAwaited.TOPIC: _deletion_awaited,
    _I.ClaimReleased.TOPIC: lambda row, body: _without(row, "claims", body),
}

INSTANCES = Projection(
    table="instances",
    key="server_id",
    topics=frozenset(_CHANGES),
    key_of=originator,
    fold=_fold,
)
