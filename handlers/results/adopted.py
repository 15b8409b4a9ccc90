"""A server of a Nova becomes the ledger's, and is handed back (decision 0114).

Facts on which both agree stay as they are: no attachment is made or replaced, no guest is touched.
Only the owner changes, of the server, its mappings and its attachments, in one append.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID, uuid5

from aggregates import errors
from aggregates.attachment import Attachment, AttachmentState
from aggregates.base import Seen
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping, MappingState
from aggregates.volume import Volume
from handlers.results.adopt import AdoptedVolume, AdoptionVerdict
from handlers.results.meaning import Book


def adopt(verdict: AdoptionVerdict, host: str, reason: str, seen: Seen, book: Book) -> None:
    """`seen`: the interval in which this was seen; that is recorded already.

    Raises ChangedSinceError if the log differs.
    """
    instance = book.get(Instance, verdict.server_id)
    if instance.origin is None or instance.host != host or instance.deleted:
        raise errors.ChangedSinceError(server_id=verdict.server_id)
    epoch = book.get(Host, host).epoch
    former = {"came_from": instance.origin, "reason": reason}
    instance.record(Instance.Adopted, **former, epoch=epoch)
    for each in verdict.taken:
        _take(each, instance, seen, book)


def _take(taken: AdoptedVolume, instance: Instance, seen: Seen, book: Book) -> None:
    attachment = book.get(Attachment, taken.attachment_id)
    if (attachment.state, attachment.host) != (AttachmentState.ATTACHED, instance.host):
        raise errors.ChangedSinceError(server_id=str(instance.id))
    if taken.mapping_id is None:
        own = old_id(taken.attachment_id)
        attachment = _stands_for(attachment, own, seen, book, legacy=True)
        _map_old(taken, instance, own, seen, book)
    attachment.record(Attachment.Adopted)
    mapping = book.get(BlockDeviceMapping, mapping_id_of(taken))
    through = (mapping.volume_id, mapping.attachment_id, mapping.state, mapping.device_name)
    if through != (taken.volume_id, str(attachment.id), MappingState.PLUGGED, taken.device):
        raise errors.ChangedSinceError(server_id=str(instance.id))
    is_root = taken.boot_index == 0
    mapping.record(BlockDeviceMapping.Adopted, is_root=is_root, multiattach=taken.multiattach)
    if taken.readonly:
        mapping.learn_access_mode("ro")
    instance.reserve_device(str(mapping.id), taken.volume_id, taken.device)


def old_id(row_id: str) -> str:
    """The ledger's own id for what Cinder's old calls made; Cinder's row has another id."""
    return str(uuid5(UUID(row_id), "by the old calls"))


def mapping_id_of(taken: AdoptedVolume) -> str:
    """Nova's id of the mapping; Nova shows none for what Cinder's old calls made."""
    return taken.mapping_id or str(uuid5(UUID(taken.attachment_id), "mapping"))


def _stands_for(
    former: Attachment, id_: str, seen: Seen, book: Book, *, legacy: bool
) -> Attachment:
    """The same connection under another id."""
    assert former.volume_id is not None, "it was created"
    host, at = former.host, seen.stored()
    ids = {"volume_id": former.volume_id, "server_id": former.server_id}
    former.record(Attachment.Renamed, now=id_)
    attachment, volume = book.get(Attachment, id_), book.get(Volume, former.volume_id)
    volume.record(
        Volume.Released, server_id=former.server_id, attachment_id=str(former.id), seen=at
    )
    attachment.record(Attachment.AttachmentCreated, **ids, adopted=True, legacy=legacy, seen=at)
    volume.record(Volume.Held, server_id=former.server_id, attachment_id=id_, seen=at)
    attachment.record(Attachment.ConnectorUpdated, host=host, seen=at)
    attachment.record(Attachment.Connected, seen=at)
    attachment.record(Attachment.Completed, seen=at)
    return attachment


def _map_old(taken: AdoptedVolume, instance: Instance, own: str, seen: Seen, book: Book) -> None:
    """A mapping that Nova does not show; if it was adopted before, it stays what it was."""
    mapping = book.get(BlockDeviceMapping, mapping_id_of(taken))
    if mapping.version:
        return
    mapping.record(
        BlockDeviceMapping.MappingCreated,
        server_id=str(instance.id),
        volume_id=taken.volume_id,
        attachment_id=own,
        device_name=taken.device,
        tag=None,
        boot_index=taken.boot_index,
        delete_on_termination=taken.delete_on_termination,
        multiattach=taken.multiattach,
        legacy=True,
        seen=seen.stored(),
    )
    plugged = {"device_name": taken.device, "seen": seen.stored()}
    mapping.record(BlockDeviceMapping.DevicePlugged, **plugged)


def hand_back(
    instance: Instance, rows: Mapping[str, str], reason: str, seen: Seen, book: Book
) -> None:
    """Give the server, with all that it has now, back to its Nova.

    `rows`: Cinder's rows of what the old calls made, by volume.
    """
    assert instance.came_from is not None, "it was adopted"
    to = instance.came_from
    for bdm_id in instance.devices:
        mapping = book.get(BlockDeviceMapping, bdm_id)
        attachment = book.get(Attachment, mapping.attachment_id or "")
        if mapping.legacy:
            row = rows[mapping.volume_id or ""]
            attachment = _stands_for(attachment, row, seen, book, legacy=False)
        else:
            attachment.record(Attachment.HandedBack, to=to)
        mapping.record(BlockDeviceMapping.HandedBack, to=to)
    instance.record(Instance.HandedBack, to=to, reason=reason)
