"""What the success of a conversion's steps means; `meaning` says it of all others."""

from __future__ import annotations

from collections.abc import Callable

from aggregates.attachment import Attachment
from aggregates.mapping import BlockDeviceMapping
from aggregates.volume import Volume
from handlers.engine.verbs import LedgerVerb
from handlers.results.meaning import Done, access_mode_of, held_as, updated
from host_agent.shared.contract.messages import Verb


def _converted(done: Done) -> None:
    """The old calls' record in Cinder is of the new kind now; of no host, a bare reservation."""
    held_as(done, legacy=False)
    assert done.lane.other is not None, "only a mapping that has one is converted"
    former = done.book.get(Attachment, done.lane.other.attachment_id or "")
    if done.host is not None:
        updated(done)
        done.attachment.record(Attachment.Connected, device_path=done.outputs.get("device_path"))
        done.attachment.record(Attachment.Completed)
        done.mapping.learn_access_mode(access_mode_of(done))
        former.record(Attachment.Disconnected, converted_to=done.attachment_id)
    former.record(Attachment.Deleted, converted_to=done.attachment_id)
    done.volume.record(Volume.Released, server_id=done.server_id, attachment_id=str(former.id))


def _replaced(done: Done) -> None:
    """Of a resized server: what it has now, or what its source has kept."""
    mapping, former = done.mapping, done.lane.other and done.lane.other.attachment_id
    now = {"attachment_id": mapping.attachment_id, "kept": mapping.kept, "legacy": mapping.legacy}
    if former == mapping.kept:
        now |= {"kept": done.attachment_id}
    else:
        now |= {"attachment_id": done.attachment_id, "legacy": done.attachment.legacy}
    mapping.record(BlockDeviceMapping.AttachmentSwitched, volume_id=done.lane.volume_id, **now)


CONVERTED: dict[str, Callable[[Done], None]] = {
    Verb.ATTACHMENT_CONVERT: _converted,
    LedgerVerb.RESERVATION_CONVERT: _converted,
    LedgerVerb.MAPPING_REPLACE: _replaced,
}
