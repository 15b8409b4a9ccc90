"""Cinder's lists of all projects, page by page, in the order of ids: for reconciliation.

Theory of operation
-------------------
* `sort=id:asc` uses the primary key; Cinder's default order sorts the whole table for each page.
* Each listed attachment costs Cinder a transaction.  So pages are small, and the reader paces
  itself (ledger.reconcile.cinder_side).
* Attachments come from the summary list: the detailed one has the secrets of connections, and not
  the host, which the list of volumes has for attached ones.
* The end of a list is an empty page.  A short page may be cut by a proxy or by Cinder's
  `osapi_max_limit`; there is no `attachments_links`.
* Lists of all projects are for administrators.  Others get 200 and an empty list, or their own
  project's; the reader must find out whether a list is complete.
* Any member can set the server, host and device of an attachment, and metadata.  What PostgreSQL
  would not store of such a text is escaped: one of them would stop all looks.
* Cinder refuses a marker that was deleted meanwhile: `after` has the last ids that were read, and
  the newest one that still exists is the marker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from host_agent.shared.cinder.client import mode_of, mountpoint_of
from host_agent.shared.cinder.session import Caller
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.origin import MADE_FOR
from host_agent.shared.contract.ports import PortError
from host_agent.shared.platform import masking
from host_agent.shared.platform.text import escaped

_EVERY = {"all_tenants": "1"}
_BY_ID = "id:asc"


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedAttachment:
    """`host`, `mode` and `mountpoint`: None if the answer does not have them."""

    id: str
    volume_id: str
    server_id: str | None
    status: str
    host: str | None = None
    mode: str | None = None
    mountpoint: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedVolume:
    """`made_for`: the ledger's mark (origin.MADE_FOR).  `attached`: its attachments in use.

    `updated_at`: Cinder's text, only compared for equality.  `size_gb`: None if the answer does not
    have it.
    """

    id: str
    status: str
    migration_status: str | None
    made_for: str | None
    attached: tuple[ListedAttachment, ...]
    multiattach: bool = False
    project_id: str | None = None
    updated_at: str | None = None
    size_gb: int | None = None


T = TypeVar("T", bound=ListedAttachment | ListedVolume)


class CinderLists(Caller):
    """Reads of Cinder that no flow needs.  Raises only PortError."""

    def own_project(self) -> str | None:
        """The project of the client's token; None: unknown."""
        return self._call(lambda _cinder: self._dialogue.project())

    def attachments(self, after: Sequence[str], limit: int) -> list[ListedAttachment]:
        """The next attachments of all projects; none: there are no more."""

        def read(cinder: Any, marker: str | None) -> list[ListedAttachment]:
            found = cinder.attachments.list(
                search_opts=_EVERY, limit=limit, marker=marker, sort=_BY_ID
            )
            return [_attachment(vars(row)) for row in found]

        return self._behind(after, read)

    def volumes(self, after: Sequence[str], limit: int) -> list[ListedVolume]:
        """The next volumes of all projects, with their attached attachments; none: no more."""

        def read(cinder: Any, marker: str | None) -> list[ListedVolume]:
            found = cinder.volumes.list(search_opts=_EVERY, limit=limit, marker=marker, sort=_BY_ID)
            return [_volume(vars(row)) for row in found]

        return self._behind(after, read)

    def _behind(self, after: Sequence[str], read: Callable[[Any, str | None], list[T]]) -> list[T]:
        """The page after the last of these ids; the marker is the newest one that still exists."""
        last, markers = after[-1] if after else "", [*after]
        while True:
            try:
                page = self._page(markers[-1] if markers else None, read)
            except PortError as error:
                if error.code != "not_found" or not markers:
                    raise
                markers.pop()
                continue
            found = [row for row in page if row.id > last]
            if found or not page:
                return found
            markers.append(page[-1].id)

    def _page(self, marker: str | None, read: Callable[[Any, str | None], list[T]]) -> list[T]:
        page = self._call(lambda cinder: read(cinder, marker))
        _check_order([marker or "", *(row.id for row in page)])
        return page

    def attachment(self, attachment_id: str) -> ListedAttachment:
        """With its mode.  `not_found` only if Cinder itself says so (answers.check)."""
        return self._call(lambda cinder: _attachment(vars(cinder.attachments.show(attachment_id))))

    def attachments_of(self, volume_id: str) -> list[ListedAttachment]:
        """All of a volume, in any status; Cinder has an index for this."""

        def read(cinder: Any) -> list[ListedAttachment]:
            found = cinder.attachments.list(search_opts={**_EVERY, "volume_id": volume_id})
            return [_attachment(vars(row)) for row in found]

        return self._call(read)

    def volume(self, volume_id: str) -> ListedVolume:
        return self._call(lambda cinder: _volume(vars(cinder.volumes.get(volume_id))))


def _check_order(ids: Sequence[str]) -> None:
    """In another order, rows could be skipped or read in a loop."""
    if any(one >= other for one, other in pairwise(ids)):
        text = "Cinder's list is not in the order of ids that it was asked for."
        raise PortError(ErrorKind.UNKNOWN, "list_not_in_order", text)


def _attachment(data: Mapping[str, Any]) -> ListedAttachment:
    """From Cinder's JSON, without connection information."""
    masking.learn(data.get("connection_info") or {})
    return ListedAttachment(
        id=data["id"],
        volume_id=data["volume_id"],
        server_id=escaped(data.get("instance")),
        status=data["status"],
        mode=mode_of(data),
    )


def _volume(data: Mapping[str, Any]) -> ListedVolume:
    return ListedVolume(
        id=data["id"],
        status=data["status"],
        migration_status=data.get("migration_status"),
        made_for=escaped((data.get("metadata") or {}).get(MADE_FOR)),
        multiattach=bool(data.get("multiattach")),
        project_id=data.get("os-vol-tenant-attr:tenant_id"),
        updated_at=data.get("updated_at"),
        attached=tuple(
            ListedAttachment(
                id=row["attachment_id"],
                volume_id=data["id"],
                server_id=escaped(row.get("server_id")),
                status="attached",
                host=escaped(row.get("host_name")),
                mountpoint=mountpoint_of(row),
            )
            for row in data.get("attachments", ())
        ),
        size_gb=data.get("size"),
    )
