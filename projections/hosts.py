"""The ledger's hosts: what their agents can do, their epoch, and why they are fenced.

A row begins when the host's agent registers for the first time, or when the host is adopted (then
`service_version` is None until an agent registers).  It ends when the host is handed back.  A
deleted host keeps its row: if it registers again, it is fenced as before.
"""

from __future__ import annotations

from aggregates.host import Host
from projections.base import LoggedEvent, Projection, Row

_NEW: Row = {
    "epoch": 0,
    "fenced": False,
    "fence_reason": None,
    "fence_evidence": None,
    "suspect": False,
    "unvouched": False,
    "leftovers": None,
    "disabled": False,
    "disabled_reason": None,
    "deleted": False,
    "connector": None,
    "connector_position": None,
}


def _key(event: LoggedEvent) -> str:
    assert event.host is not None, "a host's events say which host"
    return event.host


def _fold(row: Row | None, event: LoggedEvent) -> Row | None:
    if event.topic == Host.HandedBack.TOPIC:
        return None
    row = {**(row or _NEW), **event.stamp, "host": event.host}
    match event.topic:
        case Host.HostRegistered.TOPIC | Host.Adopted.TOPIC:
            _came(row, event)
        case Host.Fenced.TOPIC:
            row.update(
                epoch=event.body["epoch"],
                fenced=True,
                suspect=not row["unvouched"],
                fence_reason=event.body["reason"],
                fence_evidence=event.body["evidence"],
            )
        case Host.Unfenced.TOPIC:
            row.update(fenced=False, fence_reason=None, fence_evidence=None)
        case Host.Disabled.TOPIC:
            row.update(disabled=True, disabled_reason=event.body["reason"])
        case Host.Enabled.TOPIC:
            row.update(disabled=False, disabled_reason=None)
        case Host.LeftoversFound.TOPIC:
            row["leftovers"] = {name: event.body[name] for name in ("guests", "attachments")}
        case Host.LeftoversCleared.TOPIC:
            row.update(suspect=False, leftovers=None)
        case Host.Deleted.TOPIC:
            row.update(epoch=event.body["epoch"], deleted=True)
        case _:
            _doubt(row, event)
    return row


def _came(row: Row, event: LoggedEvent) -> None:
    """The agent has registered, or the host was adopted."""
    if row.get("service_version") is None or row["deleted"]:
        row.update(registered_at=event.recorded_at, deleted=False)
    if event.topic == Host.Adopted.TOPIC:
        row.update(epoch=event.body["epoch"], service_version=None, capabilities={})
        return
    row["service_version"] = event.body["service_version"]
    row["capabilities"] = event.body["capabilities"]
    connector = event.body["connector"]
    if connector != row["connector"]:
        row["connector"], row["connector_position"] = connector, event.position


def _doubt(row: Row, event: LoggedEvent) -> None:
    """The ledger was restored from a backup, or an operator has vouched for the host since."""
    if event.topic == Host.Vouched.TOPIC:
        row.update(unvouched=False)
    elif event.topic == Host.Restored.TOPIC:
        row.update(epoch=event.body["epoch"], unvouched=True, suspect=False, leftovers=None)
        row.update(deleted=False, fenced=False, fence_reason=None, fence_evidence=None)


HOSTS = Projection(
    table="hosts",
    key="host",
    key_type="text",
    topics=frozenset(
        {
            Host.HostRegistered.TOPIC,
            Host.Adopted.TOPIC,
            Host.HandedBack.TOPIC,
            Host.Deleted.TOPIC,
            Host.Fenced.TOPIC,
            Host.Unfenced.TOPIC,
            Host.Disabled.TOPIC,
            Host.Enabled.TOPIC,
            Host.LeftoversFound.TOPIC,
            Host.LeftoversCleared.TOPIC,
            Host.Restored.TOPIC,
            Host.Vouched.TOPIC,
        }
    ),
    key_of=_key,
    fold=_fold,
)
