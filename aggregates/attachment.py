"""One attachment of one volume to one server, on at most one host: Cinder's attachment, with the
ledger's evidence.

Invariant: an attachment that may be connected on a host is never `Deleted` before that host has
proved its disconnect, or an operator has waived the proof (CVE-2023-2088, LP 1765742).  The state
machine below enforces this.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

from aggregates import errors
from aggregates.base import About, Aggregate, Event


class AttachmentState(StrEnum):
    """Where an attachment stands."""

    RESERVED = "reserved"  # -> connecting, deleted
    CONNECTING = "connecting"  # Cinder has a connector -> connected, disconnected, deleted
    CONNECTED = "connected"  # the host has the device -> connecting, attached, disconnected
    ATTACHED = "attached"  # Cinder was told -> connecting, disconnected
    DISCONNECTED = "disconnected"  # proven or waived -> connecting, deleted
    DELETED = "deleted"
    RENAMED = "renamed"  # it has another id here now -> reserved


class Attachment(Aggregate):
    """The aggregate's id is Cinder's attachment id."""

    class AttachmentCreated(Event):
        """Cinder has reserved the volume for the server.

        `adopted`: the ledger found the attachment in Cinder and did not create it.  `legacy`:
        reserved by Cinder's old calls, which have no attachments; the id is the ledger's own (S1).
        """

        volume_id: str
        server_id: str
        adopted: bool = False
        legacy: bool = False
        access_mode: str | None = None

    class ConnectorUpdated(Event):
        """Cinder has the connector of this host.

        `target_digest` identifies the target.  `access_mode`: "ro" or "rw"; None: not stored, see
        Cinder.
        """

        host: str
        driver: str | None = None
        target_digest: str | None = None
        access_mode: str | None = None

    class Connected(Event):
        """The host has connected the volume (os-brick)."""

        device_path: str | None = None

    class Completed(Event):
        """Cinder has been told that the host uses the volume (`os-complete`)."""

    class Disconnected(Event):
        """The host has disconnected the volume.

        `waived`: the operator's reason to accept this without proof.  `converted_to`: the host did
        not disconnect it; from now on the attachment with this id has the same connection.
        """

        shared: bool = False
        waived: str | None = None
        converted_to: str | None = None

    class VolumeRenamed(Event):
        """A migration in Cinder has changed the id of the attachment's volume.

        `former_volume_id`: the id before.
        """

        volume_id: str
        former_volume_id: str

    class Deleted(Event):
        """The attachment is deleted in Cinder; `waived`, `converted_to`: see Disconnected."""

        waived: str | None = None
        converted_to: str | None = None

    class Adopted(Event):
        """Nova managed the attachment; from now on the ledger does (decision 0114)."""

    class HandedBack(Event):
        """Nova manages the attachment again."""

        to: str

    class Renamed(Event):
        """The attachment has another id from now on (`now`); it has not ended.

        An attachment by Cinder's old calls has the id of Cinder's row while the ledger observes
        it, and an id of the ledger's own while the ledger manages it (S1).  So it is renamed at
        adoption and at hand-back.
        """

        now: str

    class Disowned(Event):
        """Cinder has created the attachment, but no step uses it; `why` says the reason.

        From now on no operation may adopt it; an operation that finds it deletes it.
        """

        volume_id: str
        server_id: str
        why: str

    S = AttachmentState
    TRANSITIONS: ClassVar = {
        AttachmentCreated: (frozenset({None, S.RENAMED}), S.RESERVED),
        Renamed: (frozenset({S.ATTACHED}), S.RENAMED),
        Disowned: (frozenset({None}), S.DELETED),
        ConnectorUpdated: (
            frozenset({S.RESERVED, S.CONNECTING, S.CONNECTED, S.ATTACHED, S.DISCONNECTED}),
            S.CONNECTING,
        ),
        Connected: (frozenset({S.CONNECTING, S.CONNECTED}), S.CONNECTED),
        Completed: (frozenset({S.CONNECTED}), S.ATTACHED),
        Disconnected: (
            frozenset({S.CONNECTING, S.CONNECTED, S.ATTACHED, S.DISCONNECTED}),
            S.DISCONNECTED,
        ),
        Deleted: (frozenset({S.RESERVED, S.CONNECTING, S.DISCONNECTED}), S.DELETED),
    }

    def __init__(self, id: UUID) -> None:  # noqa: A002
        super().__init__(id)
        self.volume_id: str | None = None
        self.server_id: str | None = None
        self.host: str | None = None
        self.access_mode: str | None = None
        self.legacy = False
        self.disowned = False
        self.origin: str | None = None  # whose it is, if it is only watched

    def about(self) -> About:
        return About(
            attachment_id=str(self.id),
            volume_id=self.volume_id,
            server_id=self.server_id,
            host=self.host,
        )

    def apply(self, event: Any) -> None:
        match event:
            case self.AttachmentCreated():
                self.volume_id, self.server_id = event.volume_id, event.server_id
                self.legacy, self.access_mode = event.legacy, event.access_mode
                self.origin = event.origin
            case self.Adopted():
                self.origin = None
            case self.HandedBack():
                self.origin = event.to
            case self.Disowned():
                self.volume_id, self.server_id = event.volume_id, event.server_id
                self.disowned = True
            case self.ConnectorUpdated():
                self.host = event.host
                self.access_mode = event.access_mode or self.access_mode
            case self.VolumeRenamed():
                self.volume_id = event.volume_id

    def record(self, kind: type[Event], **fields: Any) -> None:
        """One host at a time: the former one has proved its disconnect, or an operator has vouched
        for it.
        """
        if kind is self.ConnectorUpdated and self.may_be_connected and fields["host"] != self.host:
            raise errors.SecondHostError(
                id=str(self.id), state=self.state, host=self.host, other=fields["host"]
            )
        super().record(kind, **fields)

    @property
    def may_be_connected(self) -> bool:
        """Whether a host may have the volume through this attachment."""
        return self.state in {
            AttachmentState.CONNECTING,
            AttachmentState.CONNECTED,
            AttachmentState.ATTACHED,
        }
