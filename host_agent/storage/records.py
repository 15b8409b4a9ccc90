"""Records of what this host has connected: one small file per attachment.

A record is written before os-brick connects.  The step that ends the attachment on this host
removes it after the disconnect; a step that disconnects to connect again keeps it, without
connections.  With it the host can disconnect a volume even if the attachment in Cinder was deleted
while the host was down, was reset by an administrator, or has another connection now.  It has no
secrets: os-brick needs none to disconnect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import ConnectionInfo, PortError
from host_agent.shared.platform import masking
from host_agent.storage import connection
from host_agent.storage.names import path_of


@dataclass(frozen=True, kw_only=True)
class Record:
    """One attachment's connections: the present one, and former ones not disconnected yet.

    Without any, nothing is connected; the next step that needs the volume (a start, a refresh)
    connects it.
    """

    attachment_id: str
    volume_id: str  # at that time; a migration in Cinder may change it
    server_id: str
    serial: str  # of the disk in the guest
    infos: tuple[ConnectionInfo, ...] = ()
    #: What Brick.connect returned, by the connection's target_digest.  Without it os-brick guesses
    #: the device at the disconnect, and takes one path for the multipath map (LP 1785669).
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: The paths of the last connection, which the guest's definition has until it is updated.
    former: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Record({self.attachment_id}, {len(self.infos)} connections)"

    def having(self, info: ConnectionInfo) -> Self:
        """With this connection added, without its secrets."""
        infos = {connection.target_digest(known): known for known in self.infos}
        infos[connection.target_digest(info)] = masking.without_secrets(info)
        return replace(self, infos=tuple(infos.values()))

    def connected(self, info: ConnectionInfo, device: dict[str, Any] | None) -> Self:
        """With the device that connecting returned, if any, without its secrets."""
        if not device:
            return self
        found = {connection.target_digest(info): masking.without_secrets(device)}
        return replace(self, devices={**self.devices, **found})

    def without(self, info: ConnectionInfo) -> Self:
        """Without a connection that has been ended."""
        gone = connection.target_digest(info)
        return replace(
            self,
            infos=tuple(i for i in self.infos if connection.target_digest(i) != gone),
            devices={digest: d for digest, d in self.devices.items() if digest != gone},
        )

    @property
    def paths(self) -> list[str]:
        """The known paths of its devices."""
        paths = map(path_of, self.devices.values())
        return [path for path in paths if path is not None]

    @property
    def names(self) -> list[str]:
        """The names of RBD images, which QEMU opens without a device."""
        names = (i.get("name") for i in self.infos if i.get("driver_volume_type") == "rbd")
        return [name for name in names if isinstance(name, str)]

    @property
    def places(self) -> list[str]:
        """All known sources that a disk of it may have."""
        return [*self.paths, *self.names, *self.former]

    @property
    def is_whole(self) -> bool:
        """Whether the source of each connection is known."""
        by_name = len(self.names)
        return len(self.infos) == by_name + sum(self.device_of(i) is not None for i in self.infos)

    @property
    def connected_as(self) -> list[tuple[dict[str, Any], ConnectionInfo]]:
        """The devices that connecting returned, each with its connection."""
        found = ((self.device_of(info), info) for info in self.infos)
        return [(device, info) for device, info in found if device is not None]

    def device_of(self, info: ConnectionInfo) -> dict[str, Any] | None:
        """What connecting it returned; None: nothing."""
        return self.devices.get(connection.target_digest(info))


#: By attachment id.  In tests a plain dict will do.
Records = MutableMapping[str, Record]


class FileRecords(MutableMapping[str, Record]):
    """Records in the files of one directory, each durable when the assignment returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def __getitem__(self, attachment_id: str) -> Record:
        try:
            path = self._file(attachment_id)
        except (ValueError, TypeError):  # not an id: a lane without an attachment
            raise KeyError(attachment_id) from None
        try:
            data = json.loads(path.read_text())
            known = {name: data[name] for name in Record.__dataclass_fields__ if name in data}
            for name in ("infos", "former"):
                known[name] = tuple(known.get(name) or ())
            record = Record(**known)
        except FileNotFoundError:
            raise KeyError(attachment_id) from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise _failed(path, error) from error
        if record.attachment_id != attachment_id:  # it would end another attachment's connection
            raise _copied(path, record)
        return record

    def __setitem__(self, attachment_id: str, record: Record) -> None:
        path = self._file(attachment_id)
        draft = path.with_suffix(".new")
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "w") as out:
                out.write(json.dumps(vars(record)))
                out.flush()
                os.fsync(out.fileno())
            draft.replace(path)
            self._sync()
        except OSError as error:
            raise _failed(path, error) from error

    def __delitem__(self, attachment_id: str) -> None:
        try:
            self._file(attachment_id).unlink()
            self._sync()
        except FileNotFoundError:
            raise KeyError(attachment_id) from None
        except OSError as error:
            raise _failed(self._file(attachment_id), error) from error

    def __iter__(self) -> Iterator[str]:
        """Skips other files in the directory, such as copies."""
        return iter(sorted(path.stem for path in self._path.glob("*.json") if _is_id(path.stem)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _file(self, attachment_id: str) -> Path:
        """Ids come from another service, so they are checked: the result is a plain file name."""
        return self._path / f"{UUID(attachment_id)}.json"

    def _sync(self) -> None:
        """A new file name is durable only after its directory is synced."""
        handle = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _is_id(text: str) -> bool:
    """Whether it is an id in the form of `FileRecords._file`."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def there_now(records: Records) -> list[Record]:
    """All records, without those that another run removes meanwhile."""
    found = (records.get(attachment_id) for attachment_id in list(records))
    return [record for record in found if record is not None]


def of_server(records: Records, server_id: str) -> list[Record]:
    """The readable records of a server."""
    found = []
    for attachment_id in list(records):
        try:
            record = records.get(attachment_id)
        except PortError:
            continue
        if record is not None and record.server_id == server_id:
            found.append(record)
    return found


def remember(records: Records, new: Record, info: ConnectionInfo) -> Record:
    """Add `info`, which may be connected from now on, to the record (`new` if there is none)."""
    known = records.get(new.attachment_id)
    if (record := (known or new).having(info)) != known:
        records[new.attachment_id] = record
    return record


def is_known(records: Records, info: ConnectionInfo) -> bool:
    """Whether this host may have it connected already, for any server."""
    digest = connection.target_digest(info)
    return any(_may_hold(records, attachment_id, digest) for attachment_id in list(records))


def _may_hold(records: Records, attachment_id: str, digest: str) -> bool:
    """True for an unreadable record."""
    try:
        record = records.get(attachment_id)
    except PortError:
        return True
    infos = record.infos if record is not None else ()
    return any(connection.target_digest(each) == digest for each in infos)


def _copied(path: Path, record: Record) -> PortError:
    text = (
        f"The connection record {path} is of attachment {record.attachment_id}: it was copied or "
        "renamed, and nothing is done by it. Remove it, or give it its name back."
    )
    return PortError(ErrorKind.RETRYABLE, "record_failed", text)


def _failed(path: Path, error: Exception) -> PortError:
    return PortError(
        ErrorKind.RETRYABLE,
        "record_failed",
        f"The connection record {path} cannot be used ({type(error).__name__}), so nothing is "
        "connected. Check that its disk is writable and not full.",
    )
