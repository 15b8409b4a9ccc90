"""Cinder's two ways to attach a volume, behind one interface.

`NewFlow` uses attachments (Cinder 3.44 and later).  `OldFlow` uses the older volume actions (S1,
old flow): Cinder has no attachment then, so the ledger makes its own id.  The answer of
`initialize_connection` is not stored, so it is requested again whenever it is needed.  Only this
module knows which lane has which flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import structlog

from host_agent.late_requests import let_land, sending
from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import (
    AttachmentView,
    ConnectionInfo,
    OldAttachment,
    PortError,
)
from host_agent.shared.contract.volume_states import Deletion, letting_go
from host_agent.storage import connection
from host_agent.storage.records import Record
from host_agent.verbs.context import RunContext, final, is_missing, no_attachment_id

_LOG = structlog.get_logger(__name__)
_CONNECTED = frozenset({"attaching", "attached"})


@dataclass(frozen=True)
class CreatedAttachment:
    """A new attachment of this host."""

    attachment_id: str
    info: ConnectionInfo


class NewFlow:
    """One attachment in Cinder for each host that has the volume."""

    def __init__(self, ctx: RunContext, lane: Lane) -> None:
        self._ctx, self._lane = ctx, lane
        self.connector_host: str | None = None  # whose connector Cinder was given, if it was

    def info(self) -> ConnectionInfo:
        """Connection information; FINAL `not_connected` before the attachment has a connector."""
        return self._learnt(self._seen())

    def create(self) -> CreatedAttachment:
        """Create one, after the deletion of what earlier attempts may have left.

        Theirs is not reused: whose connector it has cannot be seen, and after a failure halfway it
        is a mere reservation.
        """
        ctx, lane = self._ctx, self._lane
        connector = self._connector()

        def create() -> AttachmentView:
            with sending(ctx.sent, self._pair()):
                return ctx.cinder.attachment_create(
                    lane.volume_id, lane.server_id, connector, lane.access_mode
                )

        made = self._with_room(create, self._pair(), self._make_room)
        if not made.connection_info:
            made = ctx.cinder.attachment(made.id)
        return CreatedAttachment(made.id, self._learnt(made))

    def _with_room(
        self, ask: Callable[[], AttachmentView], key: str, make_room: Callable[[], object]
    ) -> AttachmentView:
        """Call `ask` after `make_room` has removed what late requests may have left.

        At the first attempt `ask` comes first, because Cinder refuses it if something is left.
        """
        if self._ctx.first and key not in self._ctx.sent:
            try:
                return ask()
            except PortError as error:
                if error.code != "refused":
                    raise
        make_room()
        return ask()

    def update(self) -> ConnectionInfo:
        """Skipped if it has a connection: an attached one would go back to `attaching`."""
        let_land(self._ctx.sent, self._id(), self._ctx.clock)
        if not self._ctx.first:  # else nobody has given it a connector
            view = self._view()
            if view.connection_info and view.status in _CONNECTED:
                return self._learnt(view)
        return self._learnt_new(self._update())

    def refresh(self) -> ConnectionInfo:
        """Cinder refuses it while this host has another attachment (LP 1833736), so one that a late
        request created is deleted first.
        """
        return self._learnt_new(self._with_room(self._update, self._id(), self._end_late))

    def _end_late(self) -> None:
        let_land(self._ctx.sent, self._id(), self._ctx.clock)
        if self._knows_all():
            self._delete_unknown(self._rows())

    def _update(self) -> AttachmentView:
        connector = self._connector()
        with sending(self._ctx.sent, self._id()):
            return self._ctx.cinder.attachment_update(self._id(), connector)

    def _learnt_new(self, view: AttachmentView) -> ConnectionInfo:
        if not view.connection_info:
            view = self._view()
        return self._learnt(replace(view, status="attaching"))  # the answer may have the old status

    def complete(self, _device: str) -> None:
        seen = self._ctx.attachments.get(self._id()) if self._ctx.first else self._seen()
        if seen is not None and seen.status == "attached":
            return
        with self._existing():
            self._ctx.cinder.attachment_complete(self._id())
        view = self._view()
        if view.status != "attached":
            raise PortError(
                ErrorKind.UNKNOWN,
                "complete_not_seen",
                f"Attachment {view.id} is {view.status!r} in Cinder after being completed.",
            )
        _connection_of(view)

    def delete(self) -> list[str]:
        """Delete the attachment (a missing one is success), and unknown ones of the pair, whose ids
        are returned.

        The answer to the deletion shows the others.  They are read only if it does not, or if a
        request for another one may still be carried out.
        """
        left: list[AttachmentView] | None = None
        if self._lane.attachment_id is not None:
            with _letting_go(self._ctx, self._lane) as deletion:
                left = self._delete(self._lane.attachment_id)
                deletion.shown = left is not None
        if not self._knows_all():
            return []
        if left is None or self._pair() in self._ctx.sent:
            let_land(self._ctx.sent, self._pair(), self._ctx.clock)
            left = self._rows()
        return self._delete_unknown(left)

    def take_back(self) -> None:
        """Delete an attachment whose result the ledger refused."""
        self._delete(self._id())

    def shown(self) -> ConnectionInfo:
        """As Cinder has it; empty before the attachment has a connector."""
        return self._view().connection_info

    def to_disconnect(self, own: Record | None) -> list[ConnectionInfo]:
        """All connections that may exist, from Cinder and from this host's record."""
        found = {connection.target_digest(info): info for info in own.infos} if own else {}
        try:
            info = self.shown()
        except PortError as error:
            if error.code != "attachment_gone":
                raise
            if own is None:
                raise self._gone() from error
            return list(found.values())
        if info:  # LP 1738254: without a connector nothing was connected
            found[connection.target_digest(info)] = info
        return list(found.values())

    def _connector(self) -> dict[str, Any]:
        """With the device name, which Cinder shows (LP 1945450), and the mode, which it takes from
        here if the attachment was created without one.
        """
        connector = {**own_connector(self._ctx), "mode": self._lane.access_mode}
        if self._lane.device_name is not None:
            connector["mountpoint"] = f"/dev/{self._lane.device_name}"
        self.connector_host = self._ctx.host
        return connector

    def _seen(self) -> AttachmentView:
        """The attachment as this run has read it, or else as Cinder has it now."""
        return self._ctx.attachments.get(self._id()) or self._view()

    def _view(self) -> AttachmentView:
        with self._existing():
            return self._ctx.cinder.attachment(self._id())

    @contextmanager
    def _existing(self) -> Iterator[None]:
        """FINAL `attachment_gone` on 404."""
        try:
            yield
        except PortError as error:
            if not is_missing(error):
                raise
            raise final(
                "attachment_gone", f"Attachment {self._id()} does not exist in Cinder."
            ) from error

    def _make_room(self) -> None:
        """Delete or complete one that is `attaching`, because Cinder refuses a second one."""
        let_land(self._ctx.sent, self._pair(), self._ctx.clock)
        rows = self._rows()
        self._delete_unknown(rows)
        has = {self._lane.other and self._lane.other.attachment_id, *self._lane.known}
        for view in rows:
            if view.id in has and view.status == "attaching":
                # The server has it, so it was complete before a late update.
                self._ctx.cinder.attachment_complete(view.id)

    def _rows(self) -> list[AttachmentView]:
        return self._ctx.cinder.attachments(self._lane.volume_id, self._lane.server_id)

    def _delete_unknown(self, rows: list[AttachmentView]) -> list[str]:
        """Incomplete attachments of this pair with unknown ids, so nobody has connected them."""
        lane = self._lane
        known = {*lane.known, lane.attachment_id, lane.other and lane.other.attachment_id}
        ours = [view for view in rows if view.server_id == lane.server_id]
        unknown = [view.id for view in ours if view.id not in known and view.incomplete]
        for unknown_id in unknown:
            _LOG.warning("deleting_unknown_attachment", attachment=unknown_id)
            self._delete(unknown_id)
        return unknown

    def _knows_all(self) -> bool:
        """Whether the lane names all attachments of the pair that the ledger knows; a new attach
        has only the one that the ledger has reserved.
        """
        lane = self._lane
        return lane.other is not None or lane.attachment_id in {None, *lane.known}

    def _pair(self) -> str:
        return f"{self._lane.volume_id}+{self._lane.server_id}"

    def _delete(self, attachment_id: str) -> list[AttachmentView] | None:
        """The volume's other attachments in Cinder's answer; None: gone, without an answer."""
        try:
            shown = self._ctx.cinder.attachment_delete(attachment_id)
            if shown is not None:
                return shown
            left = self._ctx.cinder.attachment(attachment_id)
        except PortError as error:
            if is_missing(error):
                return None
            raise
        raise PortError(  # LP 1935057: a failed remove_export leaves the row
            ErrorKind.RETRYABLE,
            "attachment_left",
            f"Attachment {left.id} is still there ({left.status!r}) after its deletion.",
        )

    def _id(self) -> str:
        if self._lane.attachment_id is None:
            raise no_attachment_id(self._lane)
        return self._lane.attachment_id

    def _learnt(self, view: AttachmentView) -> ConnectionInfo:
        """The connection; the run remembers it."""
        info = _connection_of(view)
        self._ctx.attachments[view.id] = view
        return info

    def _gone(self) -> PortError:
        return final(
            "attachment_gone_connected",
            f"Attachment {self._lane.attachment_id} is gone from Cinder, and this host has no "
            f"record of it, so os-brick cannot disconnect volume {self._lane.volume_id}. Look for "
            "its device on this host.",
        )


class OldFlow:
    """Volume actions.  A row of `volume.attachments` says which server has the volume."""

    def __init__(self, ctx: RunContext, lane: Lane) -> None:
        self._ctx, self._lane = ctx, lane
        self.connector_host: str | None = None

    def info(self) -> ConnectionInfo:
        """As this run has it, or else requested now."""
        return self._ctx.infos.get(self._lane.volume_id) or self.update()

    def update(self) -> ConnectionInfo:
        connector = own_connector(self._ctx)
        self.connector_host = self._ctx.host
        info = self._ctx.cinder.initialize_connection(self._lane.volume_id, connector)
        self._ctx.infos[self._lane.volume_id] = info
        return info

    refresh = update  # Cinder stores nothing of it

    def create(self) -> CreatedAttachment:
        return CreatedAttachment(self._lane.attachment_id or str(uuid4()), self.update())

    def complete(self, device: str) -> None:
        if self.row() is not None:  # in a move the server has it already
            return
        ctx, lane = self._ctx, self._lane
        # A read-only volume is refused as "rw".
        mode = connection.access_mode(self.info(), lane.access_mode)
        ctx.cinder.attach(lane.volume_id, lane.server_id, f"/dev/{device}", ctx.host, mode)

    def delete(self) -> list[str]:
        """In a move only this host's connection ends, unless another attachment uses it; the server
        keeps its row.
        """
        lane = self._lane
        if lane.other is None:
            self._give_back()
        elif not self._ctx.users.others(lane.volume_id, lane.attachment_id or ""):
            self._terminate()
        return []

    def take_back(self) -> None:
        """End a connection whose result the ledger refused."""
        self._terminate()

    def _give_back(self) -> None:
        try:
            row = self.row()
        except PortError as error:
            if is_missing(error):
                return
            raise
        if row is not None:
            self._release(row)
        elif begun := self._begun_to_convert():
            with _letting_go(self._ctx, self._lane):
                for view in begun:
                    self._ctx.cinder.attachment_delete(view.id)
        elif self._ctx.cinder.volume(self._lane.volume_id).status == "attaching":
            self._terminate()
            self._ctx.cinder.unreserve(self._lane.volume_id)

    def _begun_to_convert(self) -> list[AttachmentView]:
        """The server's incomplete rows, from an interrupted conversion; the old calls do not show
        them.
        """
        ctx, lane = self._ctx, self._lane
        if not ctx.cinder.new_flow():
            return []
        views = ctx.cinder.attachments(lane.volume_id, lane.server_id)
        return [view for view in views if view.incomplete and view.id not in lane.known]

    def to_disconnect(self, own: Record | None) -> list[ConnectionInfo]:
        return list(own.infos) if own else [self.info()]

    def row(self) -> OldAttachment | None:
        rows = self._ctx.cinder.old_attachments(self._lane.volume_id)
        return next((row for row in rows if row.server_id == self._lane.server_id), None)

    def _release(self, row: OldAttachment) -> None:
        with _letting_go(self._ctx, self._lane):
            self._terminate()
            self._ctx.cinder.detach(self._lane.volume_id, row.id)

    def _terminate(self) -> None:
        connector = own_connector(self._ctx)
        self._ctx.infos.pop(self._lane.volume_id, None)
        self._ctx.cinder.terminate_connection(self._lane.volume_id, connector)


def flow_of(ctx: RunContext, lane: Lane) -> NewFlow | OldFlow:
    """The way this lane's volume is attached."""
    return OldFlow(ctx, lane) if lane.legacy else NewFlow(ctx, lane)


def _letting_go(ctx: RunContext, lane: Lane) -> AbstractContextManager[Deletion]:
    return letting_go(ctx.cinder, lane, first=ctx.first)


def own_connector(ctx: RunContext) -> dict[str, Any]:
    """This host's connector; FINAL `foreign_connector` if it names another host.

    Cinder does not check it, and would show the wrong host, or none, from then on (LP 1693333,
    LP 2012365).
    """
    connector = ctx.brick.connector()
    if (named := connector.get("host")) != ctx.host:
        names = f"host {named}" if named else "no host"
        raise final(
            "foreign_connector",
            f"The storage connector that os-brick makes on host {ctx.host} names {names}, so it is "
            "not given to Cinder. See that [agent] host is this machine's name, then try again.",
        )
    return connector


def _connection_of(view: AttachmentView) -> ConnectionInfo:
    if not view.connection_info:
        raise final(
            "not_connected", f"Attachment {view.id} has no connection: give it a connector first."
        )
    return view.connection_info
