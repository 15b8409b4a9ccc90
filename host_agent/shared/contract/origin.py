"""The origin of a volume in Cinder, by which a volume that the ledger created is recognised.

Most of it can be copied.  A restored backup has all metadata of its volume, the target of a
migration also has its other fields, and an owner can write a volume's metadata.  Nobody can write
the creator: Cinder takes it from the token of the request, and changes it at a transfer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

#: The ledger's mark: the metadata key with the id of the disk that a volume was created for.
MADE_FOR = "attachment_ledger"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """None: unknown, or there is none.

    `user_id`: who created it.  `mark`: for which disk, by its metadata.  `created_at`: by Cinder's
    clock, in seconds since the epoch.
    """

    user_id: str | None = None
    mark: str | None = None
    created_at: float | None = None
    snapshot_id: str | None = None
    source_volume_id: str | None = None


UNTOLD = Origin()


@dataclass(frozen=True, kw_only=True)
class Dependents:
    """The ids of what was created from a volume; None: unknown."""

    snapshots: tuple[str, ...] | None = None
    backups: tuple[str, ...] | None = None
    clones: tuple[str, ...] | None = None


def origin_of(data: Mapping[str, Any]) -> Origin:
    """From Cinder's JSON of a volume."""
    return Origin(
        user_id=data.get("user_id"),
        mark=(data.get("metadata") or {}).get(MADE_FOR),
        created_at=_seconds(data.get("created_at")),
        snapshot_id=data.get("snapshot_id"),
        source_volume_id=data.get("source_volid"),
    )


def _seconds(text: Any) -> float | None:
    """Cinder's times are in UTC, without a zone."""
    try:
        return datetime.fromisoformat(str(text)).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
