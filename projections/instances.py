"""Servers as `/v2.1/servers` shows them."""

from __future__ import annotations

from aggregates.instance import VM_STATE_OF as VM_STATE_OF_POWER_STATE
from aggregates.instance import Instance, VmState
from projections.base import LoggedEvent, Projection, Row, originator


def _fold(row: Row | None, event: LoggedEvent) -> Row:
    body = event.body
    row = {**(row or _new(event)), **event.stamp}
    match event.topic:
        case Instance.InstanceRegistered.TOPIC | Instance.InstanceObserved.TOPIC:
            row.update(
                name=body["name"],
                host=body["host"],
                power_state=body["power_state"],
                devices=body["devices"],
                base_vm_state=VM_STATE_OF_POWER_STATE.get(
                    body["power_state"], row["base_vm_state"]
                ),
            )
        case Instance.Faulted.TOPIC:
            row["faults"] = {**row["faults"], body["claimant"]: body["message"]}
        case Instance.FaultCleared.TOPIC:
            row["faults"] = {k: v for k, v in row["faults"].items() if k != body["claimant"]}
    row["vm_state"] = VmState.ERROR if row["faults"] else row["base_vm_state"]
    return row


def _new(event: LoggedEvent) -> Row:
    return {
        "server_id": event.originator_id,
        "project_id": event.body["project_id"],
        "user_id": event.body["user_id"],
        "base_vm_state": VmState.BUILDING,
        "faults": {},
        "created_at": event.recorded_at,
    }


INSTANCES = Projection(
    table="instances",
    key="server_id",
    topics=frozenset(
        {
            Instance.InstanceRegistered.TOPIC,
            Instance.InstanceObserved.TOPIC,
            Instance.Faulted.TOPIC,
            Instance.FaultCleared.TOPIC,
        }
    ),
    key_of=originator,
    fold=_fold,
)
