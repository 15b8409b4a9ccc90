"""What a verb's success means: the domain events it makes true.

They are recorded in the transaction that records the success, whether a step did
it, an undo, or an operator who vouches for it (`waived` then holds the reason).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from aggregates.attachment import Attachment, AttachmentState
from aggregates.base import Aggregate
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.volume import Volume
from handlers.plan import LedgerVerb
from host_agent.contract import Lane, Verb

A = TypeVar("A", bound=Aggregate)
Outputs = dict[str, Any]


class Book(Protocol):
    """Aggregates by id, each loaded once; what changed is saved together."""

    def get(self, kind: type[A], id: str) -> A: ...  # noqa: A002


def apply_meaning(
    verb: Verb | LedgerVerb, lane: Lane, outputs: Outputs, host: str | None, book: Book
) -> None:
    """Record what this verb's success means for the lane's aggregates, if anything."""
    if verb in MEANING:
        MEANING[verb](lane, outputs, host, book)


def _reserved(lane: Lane, outputs: Outputs, host: str | None, book: Book) -> None:
    del host
    book.get(Attachment, _known(lane)).record(
        Attachment.AttachmentCreated,
        volume_id=lane.volume_id,
        server_id=lane.server_id,
        adopted=bool(outputs.get("adopted", False)),
    )
    book.get(Volume, lane.volume_id).record(
        Volume.Held, server_id=lane.server_id, attachment_id=_known(lane)
    )


def _bound(lane: Lane, outputs: Outputs, host: str | None, book: Book) -> None:
    del outputs, host
    book.get(BlockDeviceMapping, lane.bdm_id).record(
        BlockDeviceMapping.MappingCreated,
        server_id=lane.server_id,
        volume_id=lane.volume_id,
        attachment_id=_known(lane),
        device_name=lane.device_name,
        tag=lane.tag,
        boot_index=lane.boot_index,
        delete_on_termination=lane.delete_on_termination,
        multiattach=lane.multiattach,
    )


def _unbound(lane: Lane, outputs: Outputs, host: str | None, book: Book) -> None:
    del outputs, host
    mapping = book.get(BlockDeviceMapping, lane.bdm_id)
    if mapping.live:
        mapping.record(BlockDeviceMapping.MappingEnded)
    book.get(Instance, lane.server_id).release_device(lane.bdm_id)


def _updated(lane: Lane, outputs: Outputs, host: str | None, book: Book) -> None:
    book.get(Attachment, _known(lane)).record(
        Attachment.ConnectorUpdated,
        host=host,
        driver=outputs.get("driver"),
        target_digest=outputs.get("target_digest"),
    )


def _connected(lane: Lane, outputs: Outputs, host: str | None, book: Book) -> None:
    del host
    book.get(Attachment, _known(lane)).record(
        Attachment.Connected, device_path=outputs.get("device_path")
    )


def _plugged(lane: Lane, outputs: Outputs, host: str | None, book: Book) -> None:
    del host
    book.get(BlockDeviceMapping, lane.bdm_id).record(
        BlockDeviceMapping.DevicePlugged,
        device_name=outputs.get("device_name", lane.device_name),
        bus=outputs.get("bus"),
    )


def _completed(lane: Lane, outputs: Outputs, host: str | None, book: Book) -> None:
    del outputs, host
    book.get(Attachment, _known(lane)).record(Attachment.Completed)


def _unplugged(lane: Lane, outputs: Outputs, host: str | None, book: Book) -> None:
    del host
    mapping = book.get(BlockDeviceMapping, lane.bdm_id)
    if mapping.live:
        mapping.record(BlockDeviceMapping.DeviceUnplugged, waived=outputs.get("waived"))


def _disconnected(lane: Lane, outputs: Outputs, host: str | None, book: Book) -> None:
    del host
    attachment = book.get(Attachment, _known(lane))
    # One that never had a connector has nothing to disconnect (LP 1738254).
    if attachment.state is not AttachmentState.RESERVED:
        attachment.record(
            Attachment.Disconnected,
            shared=bool(outputs.get("shared", False)),
            waived=outputs.get("waived"),
        )


def _deleted(lane: Lane, outputs: Outputs, host: str | None, book: Book) -> None:
    del host
    if lane.attachment_id is None:  # the reservation never came to be
        return
    attachment = book.get(Attachment, lane.attachment_id)
    # Undoing may delete at the host and again in the ledger: one fact (LP 1812969).
    if attachment.state is not AttachmentState.DELETED:
        attachment.record(Attachment.Deleted, waived=outputs.get("waived"))
        book.get(Volume, lane.volume_id).record(
            Volume.Released, server_id=lane.server_id, attachment_id=lane.attachment_id
        )


def _known(lane: Lane) -> str:
    assert lane.attachment_id is not None, "every other step comes after the reservation"
    return lane.attachment_id


MEANING: dict[str, Callable[[Lane, Outputs, str | None, Book], None]] = {
    LedgerVerb.ATTACHMENT_RESERVE: _reserved,
    LedgerVerb.MAPPING_BIND: _bound,
    LedgerVerb.MAPPING_UNBIND: _unbound,
    Verb.ATTACHMENT_UPDATE: _updated,
    Verb.VOLUME_CONNECT: _connected,
    Verb.DISK_PLUG: _plugged,
    Verb.ATTACHMENT_COMPLETE: _completed,
    Verb.DISK_UNPLUG: _unplugged,
    Verb.VOLUME_DISCONNECT: _disconnected,
    Verb.ATTACHMENT_DELETE: _deleted,  # equals LedgerVerb.ATTACHMENT_DELETE
}
