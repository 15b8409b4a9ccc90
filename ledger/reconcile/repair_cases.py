"""A finding with all that its repair is decided by: from the log, and from Cinder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from aggregates import errors
from aggregates.attachment import Attachment
from aggregates.finding import Finding
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.volume import Volume
from handlers.drift.repairs import RepairContext
from handlers.results.meaning import Book
from host_agent.shared.contract.ports import AttachmentView, Cinder, PortError, VolumeView

T = TypeVar("T")


class FleetHistory(Protocol):
    """What the read side knows of the past (ledger.core.requests.Fleet)."""

    @property
    def had(self) -> Callable[[str], Iterable[str]]: ...
    @property
    def unfenced(self) -> Callable[[], Iterable[str]]: ...


class RepairContexts:
    """`of` raises PortError if Cinder cannot be asked; what it has said is not asked again."""

    def __init__(self, cinder: Cinder, histories: FleetHistory) -> None:
        self._cinder, self._histories = cinder, histories
        self._attachments: dict[str, AttachmentView | None] = {}
        self._volumes: dict[str, VolumeView | None] = {}

    def of(self, finding: Finding, book: Book) -> RepairContext:
        """The case as it is now.  Raises RepairError if no server of it is known."""
        about = finding.about()
        shown = self._attachment(about.attachment_id, about.volume_id)
        volume_id = (shown.volume_id if shown else None) or about.volume_id or _secret_of(finding)
        volume = book.get(Volume, volume_id) if volume_id else None
        server_id = about.server_id or (volume.last_server if volume else None)
        instance = book.get(Instance, server_id) if server_id else None
        if server_id is None or instance is None or not instance.version:
            why = "no server that the ledger knows ever had it: see to it by hand."
            raise errors.RepairError(finding_id=str(finding.id), why=why)
        known = about.attachment_id and book.get(Attachment, about.attachment_id)
        mappings = [book.get(BlockDeviceMapping, bdm_id) for bdm_id in instance.devices]
        return RepairContext(
            finding=finding,
            server_id=server_id,
            instance=instance,
            mappings=mappings,
            attachment=known if known and known.version else _held(mappings, volume_id, book),
            volume=volume,
            shown=shown,
            view=self._volume(volume_id),
            hosts=self._hosts(finding, instance),
            held=list(_all_held(mappings, server_id, book)),
            every_host=list(self._histories.unfenced()),
        )

    def _hosts(self, finding: Finding, instance: Instance) -> list[str]:
        """Where the server is, was, or may have been left; and who Cinder says has the volume."""
        in_cinder = finding.differs.get("cinder") or {}
        named = in_cinder.get("host") if isinstance(in_cinder, dict) else None
        own = {instance.host, instance.resize_source, *instance.left_on}
        every = {*own, named, finding.about().host, *self._histories.had(str(instance.id))}
        return sorted(host for host in every if host)

    def _attachment(
        self, attachment_id: str | None, volume_id: str | None
    ) -> AttachmentView | None:
        if attachment_id not in self._attachments and attachment_id is not None:
            self._attachments[attachment_id] = shown_by(self._cinder, attachment_id, volume_id)
        return self._attachments.get(attachment_id or "")

    def _volume(self, volume_id: str | None) -> VolumeView | None:
        return _remembered(self._volumes, volume_id, self._cinder.volume)


def shown_by(cinder: Cinder, attachment_id: str, volume_id: str | None) -> AttachmentView | None:
    """An attachment as Cinder has it now; None: only if Cinder itself says 404.

    One that it refuses to show by itself (400: it was made by the old calls, of a volume that is a
    file) is in the list of its volume's, if it is there.
    """
    try:
        return cinder.attachment(attachment_id)
    except PortError as error:
        if error.code == "not_found":
            return None
        rows = cinder.attachments(volume_id, None) if error.code == "refused" and volume_id else []
        found = next((row for row in rows if row.id == attachment_id), None)
        if found is None:
            raise
        return found


def _secret_of(finding: Finding) -> str | None:
    """The volume whose passphrase it is: what storage has is known by kind and name alone."""
    assert finding.found is not None, "it is a finding"
    kind, _, name = finding.found.key.partition("/")
    return name if kind == "secret" else None


def _remembered(known: dict[str, T | None], id_: str | None, ask: Callable[[str], T]) -> T | None:
    if id_ is None:
        return None
    if id_ not in known:
        try:
            known[id_] = ask(id_)
        except PortError as error:
            if error.code != "not_found":
                raise
            known[id_] = None
    return known[id_]


def _held(
    mappings: Iterable[BlockDeviceMapping], volume_id: str | None, book: Book
) -> Attachment | None:
    """The attachment by which the server has the volume."""
    held = (m.attachment_id for m in mappings if m.live and m.volume_id == volume_id)
    attachment_id = next(held, None)
    return book.get(Attachment, attachment_id) if attachment_id else None


def _all_held(
    mappings: Iterable[BlockDeviceMapping], server_id: str, book: Book
) -> Iterator[tuple[Attachment, Volume]]:
    """All attachments of the server, with their volumes; also those that are deleted, and whose
    mappings a refused undo has left.
    """
    live = [m for m in mappings if m.live]
    for volume_id in sorted({m.volume_id for m in live if m.volume_id}):
        volume = book.get(Volume, volume_id)
        through = {m.attachment_id for m in live if m.attachment_id and m.volume_id == volume_id}
        for attachment_id in sorted(through.union(volume.held_by(server_id))):
            yield book.get(Attachment, attachment_id), volume
