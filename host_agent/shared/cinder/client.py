"""Cinder behind the `Cinder` port, over the unmodified python-cinderclient.

All calls block; callers use threads, which may share one `CinderClient`.

Theory of operation
-------------------
* Errors, retries and the microversion: see session.py.  Attachments need 3.44
  (`os-complete`); with less, their calls are FINAL `cinder_too_old` and volumes are
  still served.
* `attachment_create` and `volume_create` are never repeated: they are not idempotent, so the caller
  looks for what an earlier call has created.  `attachment_update` is not repeated after an unknown
  outcome: carried out late, it sets an attached attachment back to `attaching`.
* Every API v3 has the calls from before 3.44; the connector says which host's connection it is.
  `reserve` and `begin_detaching` change a status, so Cinder refuses a repetition: a lost answer is
  UNKNOWN, and the volume's status shows the outcome.  The others may be repeated.
* If an answer was lost after the effect, the repetition recognises that: a volume that is being
  deleted, a migration that ended as requested.
* From 3.69 a volume's `shared_targets` may be null, which older microversions report
  as true (LP 1961102); both mean "take the lock".  Below 3.48 Cinder has neither that
  nor the service: every volume then counts as shared, and there is nothing to wait for.
* Secrets of connection information are registered for masking when they are read.
* The client's resources have Cinder's fields as attributes: `vars` returns them without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, TypeVar

from host_agent.shared.cinder.session import Caller
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.origin import MADE_FOR, Dependents, origin_of
from host_agent.shared.contract.ports import (
    AttachmentView,
    ConnectionInfo,
    Encryption,
    OldAttachment,
    PortError,
    SnapshotView,
    VolumeView,
)
from host_agent.shared.platform import masking
from host_agent.shared.platform.text import escaped, one_line

T = TypeVar("T")

NEW_FLOW = (3, 44)  # os-complete: S1's new flow
REIMAGE = (3, 68)  # os-reimage
PAGE_ROWS = 50  # far below any sensible osapi_max_limit, so a short page is the last
PAGES_MAX = 20


# --- views ---------------------------------------------------------------------------------------


def volume_view(data: Mapping[str, Any]) -> VolumeView:
    """From Cinder's JSON.  Without the fields of 3.48: None and ""."""
    return VolumeView(
        id=data["id"],
        status=data["status"],
        size_gb=data["size"],
        multiattach=bool(data.get("multiattach")),
        shared_targets=data.get("shared_targets"),
        service_uuid=data.get("service_uuid", ""),
        bootable=str(data.get("bootable")).lower() == "true",
        encrypted=bool(data.get("encrypted")),
        availability_zone=data.get("availability_zone"),
        project_id=data.get("os-vol-tenant-attr:tenant_id"),
        name=data.get("name"),
        migration_status=data.get("migration_status"),
        readonly=str((data.get("metadata") or {}).get("readonly")).lower() == "true",
        new_size_gb=_new_size_gb(data),
        image_id=(data.get("volume_image_metadata") or {}).get("image_id"),
        origin=origin_of(data),
    )


def snapshot_view(data: Mapping[str, Any]) -> SnapshotView:
    """From Cinder's JSON; only administrators get the project."""
    return SnapshotView(
        id=data["id"],
        volume_id=data["volume_id"],
        size_gb=data["size"],
        project_id=data.get("os-extended-snapshot-attributes:project_id"),
        status=data["status"],
        progress=data.get("os-extended-snapshot-attributes:progress"),
    )


def _new_size_gb(data: Mapping[str, Any]) -> int | None:
    """Cinder's extend_volume_completion uses this metadata, a text (cinder/volume/api.py)."""
    size = str((data.get("metadata") or {}).get("extend_new_size"))
    return int(size) if data["status"] == "extending" and size.isdecimal() else None


def encryption_view(data: Mapping[str, Any]) -> Encryption:
    """From Cinder's JSON; without a provider if the volume is not encrypted."""
    return Encryption(
        provider=data.get("provider"),
        key_id=data.get("encryption_key_id"),
        cipher=data.get("cipher"),
        key_size=data.get("key_size"),
    )


def attachment_view(data: Mapping[str, Any]) -> AttachmentView:
    """From Cinder's JSON; connection_info stays flat, data beside type.

    For a volume with a known format (NFS), a single read of any attachment has connection_info with
    that format, even without a connector; that counts as empty.
    """
    info = data.get("connection_info") or {}
    info = {} if info.keys() == {"format"} else info
    masking.learn(info)
    return AttachmentView(
        id=data["id"],
        volume_id=data["volume_id"],
        server_id=data["instance"],
        status=data["status"],
        connection_info=info,
        mode=mode_of(data),
    )


def mode_of(data: Mapping[str, Any]) -> str | None:
    """An attachment's mode; Cinder has the text "null" if none was given."""
    mode = data.get("attach_mode")
    return mode if mode in {"rw", "ro"} else None


def mountpoint_of(row: Mapping[str, Any]) -> str | None:
    """The disk's name in a row of `volume.attachments`; Cinder has "na" if none was given."""
    device = one_line(str(row.get("device") or "")).removeprefix("/dev/")
    return device if device not in {"", "na"} else None


def connection_view(data: Mapping[str, Any]) -> ConnectionInfo:
    """The old flow's connection information, flat like an attachment's."""
    info = {**data.get("data", {}), **{k: v for k, v in data.items() if k != "data"}}
    masking.learn(info)
    return info


def old_attachment_views(data: Mapping[str, Any]) -> list[OldAttachment]:
    """From a volume's JSON, which lists attached attachments of both flows."""
    return [
        OldAttachment(
            id=row["attachment_id"],
            server_id=row["server_id"],
            host_name=escaped(row.get("host_name")),
            mountpoint=mountpoint_of(row),
        )
        for row in data.get("attachments", ())
    ]


# --- repeated calls ------------------------------------------------------------------------------


def delete_volume(delete: Callable[[], object], read: Callable[[], VolumeView]) -> None:
    """Delete; a missing or `deleting` volume is success (Cinder refuses the latter)."""
    try:
        delete()
    except PortError as error:
        if error.code == "not_found":
            return
        if error.code != "refused" or not _is_going(read):
            raise


def _is_going(read: Callable[[], VolumeView]) -> bool:
    try:
        return read().status == "deleting"
    except PortError as error:
        if error.code != "not_found":
            raise
        return True


def end_migration(end: Callable[[], str], read: Callable[[], VolumeView], *, error: bool) -> str:
    """End a migration; one that has ended so already, by the old volume, is success."""
    try:
        return end()
    except PortError as refused:
        if refused.kind is not ErrorKind.FINAL:
            raise
        old = read()
        if old.migration_status != ("error" if error else "success"):
            raise
        return old.id


def end_extension(
    end: Callable[[], object], read: Callable[[], VolumeView], *, error: bool
) -> None:
    """End an extension; one that has ended so already, by the volume, is success."""
    try:
        end()
    except PortError as refused:
        if refused.kind is not ErrorKind.FINAL:
            raise
        status = read().status
        if status == "extending" or (status == "error_extending") is not error:
            raise


# --- the port ------------------------------------------------------------------------------------


class CinderClient(Caller):
    """The `Cinder` port over HTTP.  See the module's theory of operation."""

    def new_flow(self) -> bool:
        return self._call(lambda _cinder: self._dialogue.version()) >= NEW_FLOW

    def reimages(self) -> bool:
        return self._call(lambda _cinder: self._dialogue.version()) >= REIMAGE

    def volume(self, volume_id: str) -> VolumeView:
        return self._call(lambda cinder: volume_view(vars(cinder.volumes.get(volume_id))))

    def snapshot(self, snapshot_id: str) -> SnapshotView:
        return self._call(
            lambda cinder: snapshot_view(vars(cinder.volume_snapshots.get(snapshot_id)))
        )

    def encryption(self, volume_id: str) -> Encryption:
        return self._call(
            lambda cinder: encryption_view(cinder.volumes.get_encryption_metadata(volume_id))
        )

    def attachment(self, attachment_id: str) -> AttachmentView:
        return self._call(
            lambda cinder: attachment_view(vars(cinder.attachments.show(attachment_id)))
        )

    def attachments(self, volume_id: str | None, server_id: str | None) -> list[AttachmentView]:
        """All of them, of any project, with connection information."""
        ids = {"instance_id": server_id, "volume_id": volume_id}
        wanted = {"all_tenants": "1"} | {name: id_ for name, id_ in ids.items() if id_ is not None}
        rows: list[AttachmentView] = []
        for _page in range(PAGES_MAX):
            page = self._page(wanted, rows[-1].id if rows else None)
            rows += page
            if len(page) < PAGE_ROWS:
                return rows
        text = f"{server_id or volume_id} has more than {len(rows)} attachments."
        raise PortError(ErrorKind.FINAL, "too_many_attachments", text)

    def _page(self, wanted: dict[str, str], marker: str | None) -> list[AttachmentView]:
        def read(cinder: Any) -> list[AttachmentView]:
            found = cinder.attachments.list(
                detailed=True, search_opts=wanted, limit=PAGE_ROWS, marker=marker
            )
            return [attachment_view(vars(item)) for item in found]

        return self._call(read)

    def attachment_create(
        self,
        volume_id: str,
        server_id: str,
        connector: dict[str, Any] | None = None,
        mode: str = "rw",
    ) -> AttachmentView:
        """One attempt only, and no look before it: see the module's theory."""
        return self._once(
            lambda cinder: attachment_view(
                cinder.attachments.create(volume_id, connector, server_id, mode)
            )
        )

    def attachment_update(self, attachment_id: str, connector: dict[str, Any]) -> AttachmentView:
        """Not repeated after an unknown outcome, because a late update would undo a completion."""
        return self._call(
            lambda cinder: attachment_view(
                vars(cinder.attachments.update(attachment_id, connector))
            ),
            repeatable=False,
        )

    def attachment_complete(self, attachment_id: str) -> None:
        self._call(lambda cinder: cinder.attachments.complete(attachment_id))

    def attachment_delete(self, attachment_id: str) -> list[AttachmentView] | None:
        """A missing attachment is success."""
        try:
            _, body = self._call(lambda cinder: cinder.attachments.delete(attachment_id))
        except PortError as error:
            if error.code != "not_found":
                raise
            return None
        rows = body.get("attachments") if isinstance(body, dict) else None
        left = [attachment_view(row) for row in rows] if isinstance(rows, list) else None
        return None if left is None or attachment_id in {view.id for view in left} else left

    def volume_create(self, wanted: dict[str, Any], key: str) -> str:
        """One attempt only, and no look before it: see the module's theory.

        Cinder creates in the token's project, and ignores any other.  So a volume for `project_id`
        is created with a token for that project, in which the user needs a role; being an
        administrator is not enough.
        """
        if (project_id := wanted.get("project_id")) is not None:
            ours = {**wanted, "project_id": None}
            return self._in_project(project_id, lambda there: there.volume_create(ours, key))
        return self._once(lambda cinder: _create(cinder, wanted, key))

    def volumes_made(self, key: str, project_id: str | None) -> list[VolumeView]:
        if project_id is not None:
            return self._in_project(project_id, lambda there: there.volumes_made(key, None))
        return self._call(lambda cinder: _made_with(cinder, key))

    def dependents(self, volume_id: str) -> Dependents:
        """The filter by source is for administrators: other users are refused that list, and may
        get incomplete other lists.
        """

        def of(list_: Callable[[Any], Any], name: str) -> tuple[str, ...] | None:
            wanted = {"all_tenants": "1", name: volume_id}
            try:
                found = self._call(lambda cinder: list_(cinder).list(search_opts=wanted, limit=1))
            except PortError as error:
                if error.kind is not ErrorKind.FINAL:
                    raise
                return None
            return tuple(each.id for each in found)

        return Dependents(
            snapshots=of(lambda cinder: cinder.volume_snapshots, "volume_id"),
            backups=of(lambda cinder: cinder.backups, "volume_id"),
            clones=of(lambda cinder: cinder.volumes, "source_volid"),
        )

    def own_user(self) -> str | None:
        return self._call(lambda _cinder: self._dialogue.user())

    def _in_project(self, project_id: str, act: Callable[[CinderClient], T]) -> T:
        settings = self._settings.in_project(project_id)
        there = CinderClient(settings, retry=self._retry, calls=self._calls)
        with closing(there):
            try:
                return act(there)
            except PortError as error:
                if error.code != "unauthorized":
                    raise
                raise _no_role(project_id) from None

    def volume_delete(self, volume_id: str) -> None:
        delete_volume(
            lambda: self._call(lambda cinder: cinder.volumes.delete(volume_id)),
            lambda: self.volume(volume_id),
        )

    def volume_reimage(self, volume_id: str, image_id: str) -> None:
        """One attempt only: the caller reads the volume before it repeats it."""
        self._once(lambda cinder: cinder.volumes.reimage(volume_id, image_id, True))

    def migrate_volume_completion(self, old_id: str, new_id: str, *, error: bool) -> str:
        def end(cinder: Any) -> str:
            answer = cinder.volumes.migrate_volume_completion(old_id, new_id, error)
            return str(answer["save_volume_id"])

        return end_migration(lambda: self._call(end), lambda: self.volume(old_id), error=error)

    def extend_volume_completion(self, volume_id: str, *, error: bool) -> None:
        end_extension(
            lambda: self._call(
                lambda cinder: cinder.volumes.extend_volume_completion(volume_id, error)
            ),
            lambda: self.volume(volume_id),
            error=error,
        )

    def tell_snapshot(self, snapshot_id: str, status: str) -> None:
        fields = snapshot_status(status)
        self._call(
            lambda cinder: cinder.volume_snapshots.update_snapshot_status(snapshot_id, fields)
        )

    # --- the calls from before 3.44

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


def snapshot_status(status: str) -> dict[str, str]:
    """The body for os-update_snapshot_status, as Nova sends it."""
    return {"status": status, "progress": "90%"}


def _create(cinder: Any, wanted: dict[str, Any], key: str) -> str:
    made = cinder.volumes.create(
        wanted["size_gb"],
        name=wanted.get("name"),
        volume_type=wanted.get("volume_type"),
        snapshot_id=wanted.get("snapshot_id"),
        imageRef=wanted.get("image_id"),
        availability_zone=wanted.get("availability_zone"),
        metadata={MADE_FOR: key},
    )
    return str(made.id)


def _made_with(cinder: Any, key: str) -> list[VolumeView]:
    found = cinder.volumes.list(search_opts={"metadata": {MADE_FOR: key}})
    return [volume_view(vars(row)) for row in found]


def _no_role(project_id: str) -> PortError:
    return PortError(
        ErrorKind.FINAL,
        "no_role_in_project",
        f"No volume can be made for project {project_id}: Keystone knows no role of the [cinder] "
        "user there. Grant it one, or create the volume in the project first.",
    )
