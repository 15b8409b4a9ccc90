"""What every verb is given, and the looks that several of them take.

`Context` is the world of one run; the functions read Cinder and the guest, and turn
what they find into the errors that the verbs share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from host_agent import masking
from host_agent.contract import ErrorKind, Lane
from host_agent.ports import (
    AttachmentView,
    Brick,
    Cinder,
    ConnectionInfo,
    DiskState,
    Guests,
    PortError,
)


class Stopping(Exception):  # noqa: N818 - not an error: the agent was asked to stop
    """The agent stops: leave the run where it is, without a report."""


class Clock(Protocol):
    """Time for verbs: seconds of a monotonic clock."""

    def now(self) -> float: ...

    def wait(self, seconds: float) -> None:
        """Return after `seconds`; raises Stopping as soon as the agent stops."""


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How long to wait for a volume to be ready (S1; nova waits 60 times 3 s)."""

    ready_deadline_s: float = 180.0
    ready_poll_s: float = 1.0


@dataclass(frozen=True)
class Connected:
    """What `volume_connect` learnt, for `disk_plug` of the same run.  Not reported."""

    source: dict[str, Any]
    format: str
    discard: bool
    readonly: bool


@dataclass(kw_only=True)
class Context:
    """The world of one run.  `connected` is memory within the run, nothing more."""

    cinder: Cinder
    brick: Brick
    guests: Guests
    clock: Clock
    waits: Waits
    connected: Connected | None = None


def final(code: str, message: str) -> PortError:
    return PortError(ErrorKind.FINAL, code, message)


def is_missing(error: PortError) -> bool:
    """Whether a port says that the thing asked for does not exist."""
    return error.kind is ErrorKind.FINAL and error.code == "not_found"


def is_plugged(state: DiskState) -> bool:
    return state.live is not None or state.persistent is not None


def refuse_if_plugged(ctx: Context, lane: Lane) -> None:
    if is_plugged(ctx.guests.disk(lane.server_id, lane.volume_id)):
        raise final(
            "disk_still_plugged",
            f"Guest {lane.server_id} still has the disk of volume {lane.volume_id}: "
            "it is never disconnected under a guest.",
        )


def no_attachment_id(lane: Lane) -> PortError:
    return final(
        "no_attachment_id",
        f"Mapping {lane.bdm_id} has no Cinder attachment: it is of the old flow.",
    )


def attachment_of(ctx: Context, lane: Lane) -> AttachmentView:
    """The attachment as Cinder has it now; FINAL `attachment_gone` on 404."""
    if lane.attachment_id is None:
        raise no_attachment_id(lane)
    try:
        view = ctx.cinder.attachment(lane.attachment_id)
    except PortError as error:
        if not is_missing(error):
            raise
        raise final(
            "attachment_gone", f"Attachment {lane.attachment_id} does not exist in Cinder."
        ) from error
    masking.learn(view.connection_info)
    return view


def connection_of(view: AttachmentView) -> ConnectionInfo:
    if not view.connection_info:
        raise final(
            "not_connected", f"Attachment {view.id} has no connection: give it a connector first."
        )
    return view.connection_info
