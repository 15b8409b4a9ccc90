"""Cinder's calls of before 3.44 behind the `OldCinder` port: S1's old flow.

For volumes that were attached by it, and for a Cinder that offers nothing newer.  All
are actions of a volume, known to every API v3; whose connection it is, is told by the
connector.  `reserve` and `begin_detaching` move a status which a repetition would find
moved, and be refused: a lost answer leaves as UNKNOWN, and the volume's status tells.
The others may be done twice; Cinder accepts most of them in any state.
"""

from __future__ import annotations

from typing import Any

from host_agent.shared.cinder.client import connection_view, old_attachment_views
from host_agent.shared.cinder.session import Caller
from host_agent.shared.contract.ports import ConnectionInfo, OldAttachment


class OldCinderClient(Caller):
    """The `OldCinder` port over HTTP."""

    def reserve(self, volume_id: str) -> None:
        self._call(lambda cinder: cinder.volumes.reserve(volume_id), repeatable=False)

    def unreserve(self, volume_id: str) -> None:
        self._call(lambda cinder: cinder.volumes.unreserve(volume_id))

    def initialize_connection(self, volume_id: str, connector: dict[str, Any]) -> ConnectionInfo:
        return self._call(
            lambda cinder: connection_view(
                cinder.volumes.initialize_connection(volume_id, connector)
            )
        )

    def terminate_connection(self, volume_id: str, connector: dict[str, Any]) -> None:
        self._call(lambda cinder: cinder.volumes.terminate_connection(volume_id, connector))

    def attach(
        self, volume_id: str, server_id: str, device: str, host: str, mode: str = "rw"
    ) -> None:
        self._call(lambda cinder: cinder.volumes.attach(volume_id, server_id, device, mode, host))

    def begin_detaching(self, volume_id: str) -> None:
        self._call(lambda cinder: cinder.volumes.begin_detaching(volume_id), repeatable=False)

    def roll_detaching(self, volume_id: str) -> None:
        self._call(lambda cinder: cinder.volumes.roll_detaching(volume_id))

    def detach(self, volume_id: str, attachment_id: str) -> None:
        self._call(lambda cinder: cinder.volumes.detach(volume_id, attachment_id))

    def old_attachments(self, volume_id: str) -> list[OldAttachment]:
        return self._call(lambda cinder: old_attachment_views(vars(cinder.volumes.get(volume_id))))
