"""Cinder in the same process: both its ports straight on the model, no HTTP.

For tests by the thousand.  It speaks as our service does (deletes are a service's),
uses the views and the error mapping of the HTTP adapter, and the same fault rules,
so that the contract tests cannot tell the two apart.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from host_agent.shared.cinder.calls import Retry, error_of_status, timeout_error, too_old
from host_agent.shared.cinder.client import (
    attachment_view,
    connection_view,
    delete_volume,
    encryption_view,
    end_extension,
    end_migration,
    old_attachment_views,
    snapshot_status,
    snapshot_view,
    volume_view,
)
from host_agent.shared.cinder.settings import RetryLimits
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.origin import MADE_FOR, Dependents
from host_agent.shared.contract.ports import (
    AttachmentView,
    ConnectionInfo,
    Encryption,
    OldAttachment,
    PortError,
    SnapshotView,
    VolumeView,
)
from host_agent.shared.faults import Fault, Faults, InjectedError
from ledger.trial.cinder import views
from ledger.trial.cinder.model import legacy, migration, snapshots
from ledger.trial.cinder.model import work as cinder_work
from ledger.trial.cinder.model.model import CinderModel
from ledger.trial.cinder.model.rows import DEFAULT_PROJECT, DEFAULT_USER, CinderFault
from ledger.trial.cinder.model.snapshots import made_of

T = TypeVar("T")
Shown = Callable[[Sequence[Any]], list[Any]]

#: One attempt: a fault reaches the caller at once.
NO_RETRY = RetryLimits(attempts_max=1)

_COMPLETION = "os-migrate_volume_completion"
_EXTENDED = "os-extend_volume_completion"
_REIMAGE = "os-reimage"
#: The calls that python-cinderclient would not even send to an older Cinder.
_NEEDS = {
    **dict.fromkeys(
        (f"attachment_{what}" for what in ("create", "show", "list", "update", "delete")),
        views.NEW_ATTACH,
    ),
    "attachment_complete": views.COMPLETE,
}


def _as_answered(fault: Fault) -> PortError:
    """What the HTTP adapter would make of the answer that this fault gives."""
    if fault.is_timeout:
        return timeout_error()
    return error_of_status(fault.status, fault.message)


class DirectCinder:
    """The `Cinder` port on a `CinderModel`.  Thread-safe.

    `max_version` below 3.44 makes it an old Cinder.
    """

    def __init__(
        self,
        model: CinderModel,
        faults: Faults | None = None,
        *,
        retry: Retry | None = None,
        max_version: views.Microversion = views.MAX_VERSION,
    ) -> None:
        self._model = model
        self._faults = faults or Faults()
        self._retry = retry or Retry(NO_RETRY)
        self._version = max_version

    @contextmanager
    def _around(self, call: str, **ids: str | None) -> Iterator[Fault | None]:
        if self._version < _NEEDS.get(call, views.MIN_VERSION):
            raise too_old()
        row = self._model.attachments.get(ids.get("attachment_id") or "")
        if row is not None:
            ids = {"volume_id": row.volume_id, "server_id": row.instance, **ids}
        with self._model.lock:
            self._model.remembers = self._faults.looks_back or self._model.remembers
            self._model.note_call(call, **ids)
        try:
            with self._faults.around(call, **ids) as fault, self._model.lock:
                yield fault
        except CinderFault as refused:
            raise error_of_status(refused.status, refused.message) from None
        except InjectedError as injected:
            raise _as_answered(injected.fault) from None

    @contextmanager
    def _reading(self, call: str, **ids: str | None) -> Iterator[tuple[CinderModel, Shown]]:
        """The rows, as they are or once were, and what is shown of a list of them."""
        with self._around(call, **ids) as fault:
            model = self._model.as_of(fault.changes_ago if fault else 0)
            yield model, fault.shown if fault else list

    def _run(self, call: Callable[[], T], *, repeatable: bool = True) -> T:
        return self._retry.run(call, repeatable=repeatable)

    def check_service_token(self) -> None:
        """Always a service."""

    def new_flow(self) -> bool:
        return self._version >= views.COMPLETE

    def reimages(self) -> bool:
        return self._version >= views.REIMAGE

    # --- volumes -------------------------------------------------------------------------------

    def volume(self, volume_id: str) -> VolumeView:
        return volume_view(self._shown(volume_id))

    def _shown(self, volume_id: str) -> dict[str, Any]:
        def read() -> dict[str, Any]:
            with self._reading("volume_show", volume_id=volume_id) as (model, _):
                return views.volume_detail(model, model.read_volume(volume_id), self._version)

        return self._run(read)

    def encryption(self, volume_id: str) -> Encryption:
        def read() -> Encryption:
            with self._around("volume_encryption", volume_id=volume_id):
                return encryption_view(views.encryption(self._model.current(volume_id)))

        return self._run(read)

    def volume_create(self, wanted: dict[str, Any], key: str) -> str:
        with self._around("volume_create"):
            backend, multiattach = self._model.backend_of_type(
                wanted.get("volume_type") or self._model.driver
            )
            of = (wanted.get("snapshot_id"), wanted.get("image_id"))
            bootable = made_of(self._model, *of, wanted["size_gb"])
            made = self._model.add_volume(
                driver=backend.name,
                multiattach=multiattach,
                size=wanted["size_gb"],
                name=wanted.get("name"),
                snapshot_id=wanted.get("snapshot_id"),
                image_id=wanted.get("image_id"),
                bootable=bootable,
                availability_zone=wanted.get("availability_zone") or "nova",
                project_id=wanted.get("project_id") or DEFAULT_PROJECT,
                metadata={MADE_FOR: key},
                available_after_reads=1,
            )
            return made.id

    def snapshot(self, snapshot_id: str) -> SnapshotView:
        def read() -> SnapshotView:
            with self._reading("snapshot_show") as (model, _):
                return snapshot_view(snapshots.view(model.snapshot(snapshot_id)))

        return self._run(read)

    def volumes_made(self, key: str, project_id: str | None) -> list[VolumeView]:
        def read() -> list[VolumeView]:
            with self._reading("volume_list") as (model, shown):
                return [
                    volume_view(views.volume_detail(model, row, self._version))
                    for row in shown(model.listed_volumes())
                    if row.metadata.get(MADE_FOR) == key
                    and row.project_id == (project_id or DEFAULT_PROJECT)
                ]

        return self._run(read)

    def dependents(self, volume_id: str) -> Dependents:
        def ids(call: str, rows: Callable[[CinderModel], Any], of: str) -> tuple[str, ...] | None:
            def read() -> tuple[str, ...]:
                with self._reading(call, volume_id=volume_id) as (model, shown):
                    found = [row.id for row in rows(model) if getattr(row, of) == volume_id]
                    return tuple(shown(found)[:1])

            try:
                return self._run(read)
            except PortError as error:
                if error.kind is not ErrorKind.FINAL:
                    raise
                return None

        return Dependents(
            snapshots=ids("snapshot_list", lambda model: model.snapshots.values(), "volume_id"),
            backups=ids("backup_list", lambda model: model.backups.values(), "volume_id"),
            clones=ids("volume_list", lambda model: model.listed_volumes(), "source_volid"),
        )

    def own_user(self) -> str | None:
        return DEFAULT_USER

    def volume_delete(self, volume_id: str) -> None:
        def delete() -> None:
            with self._around("volume_delete", volume_id=volume_id) as fault:
                if fault is None or not fault.lies:
                    self._model.delete_volume(volume_id)

        delete_volume(lambda: self._run(delete), lambda: self.volume(volume_id))

    def volume_reimage(self, volume_id: str, image_id: str) -> None:
        with self._around("volume_action", volume_id=volume_id, action=_REIMAGE):
            volume = self._model.current(volume_id)
            cinder_work.begin_reimage(self._model, volume, image_id, reserved=True)

    def migrate_volume_completion(self, old_id: str, new_id: str, *, error: bool) -> str:
        def end() -> str:
            with self._around("volume_action", volume_id=old_id, action=_COMPLETION):
                old, new = self._model.current(old_id), self._model.current(new_id)
                return migration.complete(self._model, old, new, error=error)

        return end_migration(lambda: self._run(end), lambda: self.volume(old_id), error=error)

    def extend_volume_completion(self, volume_id: str, *, error: bool) -> None:
        def end() -> None:
            with self._around("volume_action", volume_id=volume_id, action=_EXTENDED):
                volume = self._model.current(volume_id)
                cinder_work.complete_extension(self._model, volume, error=error)

        end_extension(lambda: self._run(end), lambda: self.volume(volume_id), error=error)

    def tell_snapshot(self, snapshot_id: str, status: str) -> None:
        def tell() -> None:
            with self._around("snapshot_action"):
                snapshots.update_status(self._model, snapshot_id, snapshot_status(status))

        self._run(tell)

    # --- attachments ---------------------------------------------------------------------------

    def attachment(self, attachment_id: str) -> AttachmentView:
        def read() -> AttachmentView:
            with self._reading("attachment_show", attachment_id=attachment_id) as (model, _):
                row = model.shown_attachment(attachment_id)
                return _view(views.attachment_detail(row))

        return self._run(read)

    def attachments(self, volume_id: str | None, server_id: str | None) -> list[AttachmentView]:
        def read() -> list[AttachmentView]:
            ids = {"volume_id": volume_id, "server_id": server_id}
            with self._reading("attachment_list", **ids) as (model, shown):
                every = [*model.attachments.values()]
                rows = every if volume_id is None else model.attachments_of(volume_id)
                wanted = [row for row in rows if server_id in {None, row.instance}]
                return [_view(views.attachment_detail(row)) for row in shown(wanted)]

        return self._run(read)

    def attachment_create(
        self,
        volume_id: str,
        server_id: str,
        connector: dict[str, Any] | None = None,
        mode: str = "rw",
    ) -> AttachmentView:
        with self._around("attachment_create", volume_id=volume_id, server_id=server_id):
            known = mode if self._version >= views.CREATE_MODE else "null"
            row = self._model.attachment_create(volume_id, server_id, connector, known)
            return _view(views.created_attachment(row))

    def attachment_update(self, attachment_id: str, connector: dict[str, Any]) -> AttachmentView:
        def update() -> AttachmentView:
            with self._around("attachment_update", attachment_id=attachment_id):
                before = views.attachment_detail(self._model.attachment(attachment_id))
                row = self._model.attachment_update(attachment_id, connector)
                return _view(views.updated_attachment(before, row))

        return self._run(update, repeatable=False)

    def attachment_complete(self, attachment_id: str) -> None:
        def complete() -> None:
            with self._around("attachment_complete", attachment_id=attachment_id) as fault:
                if fault is None or not fault.lies:
                    self._model.attachment_complete(attachment_id)

        self._run(complete)

    def attachment_delete(self, attachment_id: str) -> list[AttachmentView] | None:
        def delete() -> list[AttachmentView] | None:
            with self._around("attachment_delete", attachment_id=attachment_id) as fault:
                if fault is not None and fault.lies:
                    return None
                rows = self._model.attachment_delete(attachment_id)
                left = [attachment_view(views.attachment_summary(row)) for row in rows]
                return None if attachment_id in {view.id for view in left} else left

        try:
            return self._run(delete)
        except PortError as error:
            if error.code != "not_found":
                raise
            return None

    # --- the old flow --------------------------------------------------------------------------

    def _act(
        self, name: str, volume_id: str, body: dict[str, Any], *, repeatable: bool = True
    ) -> Any:
        def act() -> dict[str, Any] | None:
            with self._around("volume_action", volume_id=volume_id, action=name):
                volume = self._model.current(volume_id)
                return copy.deepcopy(legacy.ACTIONS[name](self._model, volume, body))

        return self._run(act, repeatable=repeatable)

    def reserve(self, volume_id: str) -> None:
        self._act("os-reserve", volume_id, {}, repeatable=False)

    def unreserve(self, volume_id: str) -> None:
        self._act("os-unreserve", volume_id, {})

    def initialize_connection(self, volume_id: str, connector: dict[str, Any]) -> ConnectionInfo:
        answer = self._act("os-initialize_connection", volume_id, {"connector": connector})
        return connection_view(answer["connection_info"])

    def terminate_connection(self, volume_id: str, connector: dict[str, Any]) -> None:
        self._act("os-terminate_connection", volume_id, {"connector": connector})

    def attach(
        self, volume_id: str, server_id: str, device: str, host: str, mode: str = "rw"
    ) -> None:
        body = {"instance_uuid": server_id, "mountpoint": device, "mode": mode, "host_name": host}
        self._act("os-attach", volume_id, body)

    def begin_detaching(self, volume_id: str) -> None:
        self._act("os-begin_detaching", volume_id, {}, repeatable=False)

    def roll_detaching(self, volume_id: str) -> None:
        self._act("os-roll_detaching", volume_id, {})

    def detach(self, volume_id: str, attachment_id: str) -> None:
        self._act("os-detach", volume_id, {"attachment_id": attachment_id})

    def old_attachments(self, volume_id: str) -> list[OldAttachment]:
        return old_attachment_views(self._shown(volume_id))


def _view(data: dict[str, Any]) -> AttachmentView:
    """A view that shares nothing with the model, as over HTTP."""
    return attachment_view({**data, "connection_info": copy.deepcopy(data["connection_info"])})
