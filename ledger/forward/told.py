"""What every form of an event needs: who did what to what, and how it ended.  Pure.

Made of an event as /v1 shows it, or of a refused request.  `id` is the same each time an event is
told, and another for what a log that was restored has at the same position: its time is another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid5

from aggregates.attachment import Attachment
from aggregates.finding import Finding
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.look import Look
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation, Outcome
from aggregates.remnant import Remnant
from aggregates.volume import Volume
from ledger.words.sentences import sentence

Row = Mapping[str, Any]

#: The topic of a request that was refused; it is no event of the log.
REFUSED = "Request.Refused"

CREATED = frozenset(
    event.TOPIC
    for event in (
        Operation.OperationStarted,
        Attachment.AttachmentCreated,
        BlockDeviceMapping.MappingCreated,
        Volume.VolumeMade,
        Instance.InstanceRegistered,
        Instance.InstanceObserved,
        Host.HostRegistered,
        Remnant.RemnantLeft,
        Finding.DriftFound,
        Look.LookBegun,
    )
)
DELETED = frozenset(
    event.TOPIC
    for event in (
        Attachment.Deleted,
        BlockDeviceMapping.MappingEnded,
        Volume.VolumeDeleted,
        Instance.Deleted,
    )
)
FAILED = frozenset(
    event.TOPIC
    for event in (
        Operation.StepRetried,
        Operation.StepFailed,
        Operation.Parked,
        Volume.VolumeDeletionRefused,
        Instance.Faulted,
        Finding.RepairFailed,
    )
)
#: What has only been asked for, or begun.
PENDING = frozenset(
    event.TOPIC for event in (Operation.OperationStarted, Operation.RunStarted, Look.LookBegun)
)


class CadfAction(StrEnum):
    """In CADF's words."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class CadfOutcome(StrEnum):
    """In CADF's words."""

    SUCCESS = "success"
    FAILURE = "failure"
    PENDING = "pending"


@dataclass(frozen=True, kw_only=True)
class ToldItem:
    """An event, or a refused request.

    `thing` and `thing_id`: to what it happened, by the name of its aggregate.  `by`, `user_id`,
    `project_id`: who asked for it, and if nobody did who told it.  `address`, `agent`: from where
    it was asked for, and by what program.  `code`: of its error.
    """

    id: UUID
    position: int | None  # None: it is not in the log
    at: datetime
    topic: str
    what: str
    thing: str
    thing_id: str
    action: CadfAction
    ending: CadfOutcome
    by: str
    user_id: str | None
    project_id: str | None
    address: str | None
    agent: str | None
    host: str | None
    code: str | None
    operation_id: str | None
    request_id: str | None
    data: Row

    @property
    def needs_somebody(self) -> bool:
        return self.topic == Operation.Parked.TOPIC


def of_event(log: UUID, event: Row) -> ToldItem:
    """An event of this log, as the API shows it (ledger.native.log.schemas_events.EventShown)."""
    topic, body = event["topic"], event["body"]
    sender = body.get("sender")
    own = {**event, "name": event["actor"]}
    asker = own if sender else event["asked_by"] or own
    sender = sender or asker
    thing = topic.partition(".")[0]
    error = body.get("error") or {}
    return ToldItem(
        id=uuid5(log, f"{event['position']} {event['recorded_at']}"),
        position=event["position"],
        at=datetime.fromisoformat(event["recorded_at"]),
        topic=topic,
        what=sentence(topic, body, host=event["host"]),
        thing=thing,
        thing_id=str((event["host"] if thing == "Host" else None) or event["originator_id"]),
        action=_action(topic),
        ending=_ending(topic, body),
        by=asker["name"] or "attachment-ledger",
        user_id=asker["user_id"],
        project_id=asker["project_id"],
        address=sender.get("address"),
        agent=sender.get("agent"),
        host=event["host"],
        code=error.get("code"),
        operation_id=event["operation_id"],
        request_id=event["request_id"],
        data=event,
    )


def _action(topic: str) -> CadfAction:
    if topic in CREATED:
        return CadfAction.CREATE
    return CadfAction.DELETE if topic in DELETED else CadfAction.UPDATE


def _ending(topic: str, body: Row) -> CadfOutcome:
    if topic in PENDING:
        return CadfOutcome.PENDING
    finished = topic == Operation.OperationFinished.TOPIC
    failed = finished and body["outcome"] != Outcome.COMPLETED
    return CadfOutcome.FAILURE if failed or topic in FAILED else CadfOutcome.SUCCESS


def of_refusal(log: UUID, refusal: Row) -> ToldItem:
    """A request that was refused, as its table has it (ledger.native.log.refusals)."""
    deletes = refusal["method"] == "DELETE"
    return ToldItem(
        id=uuid5(log, refusal["request_id"]),
        position=None,
        at=refusal["refused_at"],
        topic=REFUSED,
        what=f"{refusal['status']} {refusal['code']}: {refusal['message']}{_left_out(refusal)}",
        thing="Request",
        thing_id=refusal["request_id"],
        action=CadfAction.DELETE if deletes else CadfAction.UPDATE,
        ending=CadfOutcome.FAILURE,
        by=refusal["actor"],
        user_id=refusal["user_id"],
        project_id=refusal["project_id"],
        address=refusal["address"],
        agent=refusal["agent"],
        host=None,
        code=str(refusal["status"]),
        operation_id=None,
        request_id=refusal["request_id"],
        data={**refusal, "refused_at": refusal["refused_at"].isoformat()},
    )


def _left_out(refusal: Row) -> str:
    more = refusal["left_out"]
    return f" ({more} more in the hour before are not told.)" if more else ""
