"""The origin of a volume in Cinder, by which a volume that the ledger created is recognised.

Most of it can be copied.  A restored backup has all metadata of its volume, the target of a
migration has its other fields, too, and whoever owns a volume writes its metadata.  Who created it
nobody can write: Cinder takes that from the token of the request, and a transfer changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

#: A volume's metadata key for the disk that it was made for: our mark.
MADE_FOR = "attachment_ledger"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """None where Cinder does not say it, or there is none.

    `user_id`: who created it.  `mark`: for which disk, if its metadata are true.  `created_at`: by
    Cinder's clock, in seconds since the epoch.
    """

    user_id: str | None = None
    mark: str | None = None
    created_at: float | None = None
    snapshot_id: str | None = None
    source_volume_id: str | None = None


UNTOLD = Origin()


@dataclass(frozen=True, kw_only=True)
class Dependents:
    """What was made of a volume, by ids; None: Cinder does not say."""

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
    """Cinder's times are UTC and do not say so."""
    try:
        return datetime.fromisoformat(str(text)).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
