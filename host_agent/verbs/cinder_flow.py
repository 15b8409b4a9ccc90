"""Cinder's two ways to attach a volume, behind one interface.

`NewFlow` uses attachments (Cinder 3.44 and later).  `OldFlow` uses the volume actions of before
(S1, old flow): Cinder then has no attachment of a host, and the ledger gives it its own id.  The
answer of `initialize_connection` is not stored, so it is requested again whenever it is needed.
Only this module knows which lane has which flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import structlog

from host_agent.sent import let_land, sending
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
    """An attachment that this host has now."""

    attachment_id: str
    info: ConnectionInfo


class NewFlow:
    """An attachment of Cinder's for each host that has the volume."""

    def __init__(self, ctx: RunContext, lane: Lane) -> None:
        self._ctx, self._lane = ctx, lane
        self.connector_host: str | None = None  # whose connector Cinder was given, if it was

    def info(self) -> ConnectionInfo:
        """How to connect; FINAL `not_connected` before the attachment has a connector."""
        return self._learnt(self._seen())

    def create(self) -> CreatedAttachment:
        """One of this host's own, in place of what earlier attempts may have left.

        Theirs is not taken over: whether it has this host's connector cannot be seen,
        and one that failed halfway is a bare reservation.
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
        """Ask when what late requests have left is out of the way.

        At the first attempt Cinder's refusal is what tells that there is something in the way.
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
        """Unless it has a connection: an attached one would go back to `attaching`."""
        let_land(self._ctx.sent, self._id(), self._ctx.clock)
        if not self._ctx.first:  # else nobody has given it a connector
            view = self._view()
            if view.connection_info and view.status in _CONNECTED:
                return self._learnt(view)
        return self._learnt_new(self._update())

    def refresh(self) -> ConnectionInfo:
        """Cinder refuses it while this host has another attachment (LP 1833736): one that came too
        late is deleted first.
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
        return self._learnt(replace(view, status="attaching"))  # the answer may say what it was

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
        """Delete the attachment (success if it is gone), and unknown ones of the pair: returned.

        Those the answer to the deletion shows.  Only where it does not, or a request for another
        one may be under way, are they asked for.
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

    def to_disconnect(self, own: Record | None) -> list[ConnectionInfo]:
        """All that may be connected, by Cinder's word and by this host's own record."""
        found = {connection.target_digest(info): info for info in own.infos} if own else {}
        try:
            info = self._view().connection_info
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
        """Cinder takes the device's name from it, to show it (LP 1945450), and the mode, if the
        attachment was made without one.
        """
        connector = {**own_connector(self._ctx), "mode": self._lane.access_mode}
        if self._lane.device_name is not None:
            connector["mountpoint"] = f"/dev/{self._lane.device_name}"
        self.connector_host = self._ctx.host
        return connector

    def _seen(self) -> AttachmentView:
        """The attachment as this run has seen it connected, or else as Cinder has it now."""
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
        """End or complete one that is `attaching`: until then Cinder refuses another."""
        let_land(self._ctx.sent, self._pair(), self._ctx.clock)
        rows = self._rows()
        self._delete_unknown(rows)
        has = {self._lane.other and self._lane.other.attachment_id, *self._lane.known}
        for view in rows:
            if view.id in has and view.status == "attaching":
                # The server has it, so it was complete: a late update took that back.
                self._ctx.cinder.attachment_complete(view.id)

    def _rows(self) -> list[AttachmentView]:
        return self._ctx.cinder.attachments(self._lane.volume_id, self._lane.server_id)

    def _delete_unknown(self, rows: list[AttachmentView]) -> list[str]:
        """Attachments of this pair whose ids nobody has learnt, so nobody connected them."""
        lane = self._lane
        known = {*lane.known, lane.attachment_id, lane.other and lane.other.attachment_id}
        ours = [view for view in rows if view.server_id == lane.server_id]
        unknown = [view.id for view in ours if view.id not in known and view.incomplete]
        for unknown_id in unknown:
            _LOG.warning("deleting_unknown_attachment", attachment=unknown_id)
            self._delete(unknown_id)
        return unknown

    def _knows_all(self) -> bool:
        """Whether the lane says which attachments the ledger knows; of a new one that attaches
        there is only what the ledger itself has made.
        """
        lane = self._lane
        return lane.other is not None or lane.attachment_id in {None, *lane.known}

    def _pair(self) -> str:
        return f"{self._lane.volume_id}+{self._lane.server_id}"

    def _delete(self, attachment_id: str) -> list[AttachmentView] | None:
        """The volume's others, as Cinder's answer shows them; None: it is gone all the same."""
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
        """The connection, which this run need not ask for again."""
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
        """As this run has learnt it, or else asks for it."""
        return self._ctx.infos.get(self._lane.volume_id) or self.update()

    def update(self) -> ConnectionInfo:
        connector = own_connector(self._ctx)
        self.connector_host = self._ctx.host
        info = self._ctx.cinder.initialize_connection(self._lane.volume_id, connector)
        self._ctx.infos[self._lane.volume_id] = info
        return info

    refresh = update  # what Cinder is asked for is nothing it keeps

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
        """Of a lane that moves only this host's connection ends: the server keeps its row; and so
        does the connection, if it is another attachment's by now.
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
        """The server's row with a connector that nobody has told Cinder to be in use: the old
        calls do not show it.
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
    """What Cinder is told this host by; FINAL `foreign_connector` unless it names this host.

    Cinder takes whatever it is given, and the attachment then names another host, or none
    (LP 1693333, LP 2012365): whoever asks which host has the volume is told wrongly from then on.
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
