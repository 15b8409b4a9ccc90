"""Cinder in the same process: the `Cinder` port straight on the model, no HTTP.

For tests by the thousand.  It speaks as our service does (deletes are a service's),
uses the views and the error mapping of the HTTP adapter, and the same fault rules,
so that the contract tests cannot tell the two apart.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from host_agent.cinder import (
    Backoff,
    Retry,
    attachment_view,
    error_of_status,
    timeout_error,
    volume_view,
)
from host_agent.faults import Fault, Faults
from host_agent.ports import AttachmentView, PortError, VolumeView
from ledger.simulation import cinder_views as views
from ledger.simulation.cinder_model import CinderFault, CinderModel

T = TypeVar("T")

#: One attempt: a fault reaches the caller at once.
NO_RETRY = Backoff(attempts_max=1)


def fault_as_port_error(fault: Fault) -> PortError:
    """What the HTTP adapter would make of the answer that this fault gives."""
    if fault.is_timeout:
        return timeout_error()
    return error_of_status(fault.status, fault.message)


class DirectCinder:
    """The `Cinder` port on a `CinderModel`.  Thread-safe."""

    def __init__(
        self, model: CinderModel, faults: Faults | None = None, *, retry: Retry | None = None
    ) -> None:
        self._model = model
        self._faults = faults or Faults()
        self._retry = retry or Retry(NO_RETRY)

    @contextmanager
    def _around(self, call: str, **ids: str | None) -> Iterator[Fault | None]:
        row = self._model.attachments.get(ids.get("attachment_id") or "")
        if row is not None:
            ids = {"volume_id": row.volume_id, "server_id": row.instance, **ids}
        with self._model.lock:
            self._model.note_call(call, **ids)
        with self._faults.around(call, error=fault_as_port_error, **ids) as fault, self._model.lock:
            try:
                yield fault
            except CinderFault as refused:
                raise error_of_status(refused.status, refused.message) from None

    def _run(self, call: Callable[[], T]) -> T:
        return self._retry.run(call, repeatable=True)

    def check_service_token(self) -> None:
        """Always a service."""

    def volume(self, volume_id: str) -> VolumeView:
        def read() -> VolumeView:
            with self._around("volume_show", volume_id=volume_id):
                volume = self._model.read_volume(volume_id)
                return volume_view(views.volume_detail(self._model, volume, views.MAX_VERSION))

        return self._run(read)

    def attachment(self, attachment_id: str) -> AttachmentView:
        def read() -> AttachmentView:
            with self._around("attachment_show", attachment_id=attachment_id):
                row = self._model.attachment(attachment_id)
                return _view(views.attachment_detail(row))

        return self._run(read)

    def attachments(self, volume_id: str, server_id: str) -> list[AttachmentView]:
        def read() -> list[AttachmentView]:
            with self._around("attachment_list", volume_id=volume_id, server_id=server_id):
                rows = self._model.attachments_of(volume_id)
                wanted = [row for row in rows if row.instance == server_id]
                return [_view(views.attachment_detail(row)) for row in wanted]

        return self._run(read)

    def attachment_create(
        self, volume_id: str, server_id: str, connector: dict[str, Any] | None = None
    ) -> AttachmentView:
        with self._around("attachment_create", volume_id=volume_id, server_id=server_id):
            row = self._model.attachment_create(volume_id, server_id, connector)
            return _view(views.created_attachment(row))

    def attachment_update(self, attachment_id: str, connector: dict[str, Any]) -> AttachmentView:
        def update() -> AttachmentView:
            with self._around("attachment_update", attachment_id=attachment_id):
                before = views.attachment_detail(self._model.attachment(attachment_id))
                row = self._model.attachment_update(attachment_id, connector)
                return _view(views.updated_attachment(before, row))

        return self._run(update)

    def attachment_complete(self, attachment_id: str) -> None:
        def complete() -> None:
            with self._around("attachment_complete", attachment_id=attachment_id) as fault:
                if fault is None or not fault.lies:
                    self._model.attachment_complete(attachment_id)

        self._run(complete)

    def attachment_delete(self, attachment_id: str) -> None:
        def delete() -> None:
            with self._around("attachment_delete", attachment_id=attachment_id) as fault:
                if fault is None or not fault.lies:
                    self._model.attachment_delete(attachment_id)

        try:
            self._run(delete)
        except PortError as error:
            if error.code != "not_found":
                raise


def _view(data: dict[str, Any]) -> AttachmentView:
    """A view that shares nothing with the model, as over HTTP."""
    return attachment_view({**data, "connection_info": copy.deepcopy(data["connection_info"])})
