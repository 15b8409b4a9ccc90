"""Whether a volume in Cinder is the one that the ledger made for a disk of a server (decision
0089).

The id in Cinder's answer, which the log has, is proof.  If the answer was lost, there is only the
mark in the volume's metadata.  Restored backups, the targets of Cinder's migrations, and anybody
who may write metadata can copy it.  So everything else that is known of the volume has to fit, and
it has to be the only candidate.  A fact that Cinder does not return counts as a no.

Every caller that takes over a volume by its mark, or deletes one, asks here: the step that makes it
(ledger.core.steps.volumes), its undo, and the repair of `volume_of_nobody`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aggregates.operation import Operation
from host_agent.shared.contract.origin import Dependents, Origin
from host_agent.shared.contract.ports import VolumeView

#: How long after the intent a request to create is carried out at the latest: all its attempts,
#: the wait for the last answer, and what Cinder does when nobody waits any more.
CREATED_WITHIN_S = 600.0
#: How far the clocks of Cinder and of our database may be apart.
CLOCKS_APART_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of a volume, and of the request that may have made it.

    `mark`, `wanted`: the disk's id, and what was requested (Lane.create).  `asked`: the first and
    the last request, by the database's clock.  `logged`: the disk for which, by the log, this very
    volume was made.  `others`: further volumes that are, or may be, the one that was made.
    `in_project`: Cinder lists it in the project for which it was requested.  `user_id`: our user in
    Cinder.
    """

    volume: VolumeView
    mark: str | None
    logged: str | None = None
    wanted: Mapping[str, Any] | None = None
    asked: tuple[float, float] | None = None
    others: tuple[str, ...] = ()
    in_project: bool = False
    user_id: str | None = None
    attachments: tuple[str, ...] | None = None
    dependents: Dependents = field(default_factory=Dependents)


def why_not(evidence: Evidence) -> str | None:
    """Why the volume is not accepted as the one made, or who uses it; None: it is accepted."""
    by_log = evidence.logged is not None and evidence.logged == evidence.mark
    checks = _USES if by_log else (*_IDENTITY, *_USES)
    return next((why for check in checks if (why := check(evidence)) is not None), None)


def asked_by(operation: Operation, mark: str) -> tuple[Mapping[str, Any] | None, Any, str]:
    """What the operation requested with this mark, when, and the id that it learnt ("")."""
    for number, lane in enumerate(operation.lanes):
        if lane.bdm_id == mark and lane.create is not None:
            return lane.create, operation.asked.get(number), lane.volume_id
    return None, None, ""


# --- which one it is ----------------------------------------------------------------------------


def _is_wanted(evidence: Evidence) -> str | None:
    if evidence.logged is not None:
        return f"it was made for another disk, {evidence.logged}"
    if evidence.wanted is None or evidence.mark is None:
        return "the log does not say that a volume with its mark was to be made"
    if _origin(evidence).mark != evidence.mark:
        return f"it does not carry the mark {evidence.mark}"
    return None


def _is_the_only_one(evidence: Evidence) -> str | None:
    if evidence.others:
        return f"that is, or may be, {', '.join(evidence.others)}"
    return None


def _is_ours(evidence: Evidence) -> str | None:
    """Cinder takes the creator from the token of the request, so nobody can write it."""
    creator = _origin(evidence).user_id
    if None in (creator, evidence.user_id):
        return "Cinder, or Keystone, does not say which user created it"
    if creator != evidence.user_id:
        return f"user {creator} created it, and the ledger is {evidence.user_id}"
    return None


def _is_of_that_time(evidence: Evidence) -> str | None:
    at = _origin(evidence).created_at
    if evidence.asked is None or at is None:
        return "it is not known when it was created, or asked for"
    first, last = evidence.asked
    if first - CLOCKS_APART_S <= at <= last + CREATED_WITHIN_S + CLOCKS_APART_S:
        return None
    return "it was not created while it was asked for"


def _is_as_wanted(evidence: Evidence) -> str | None:
    """Cinder sets the image after it has written it; a snapshot's volume has the image of its
    source.
    """
    wanted, volume, origin = evidence.wanted or {}, evidence.volume, _origin(evidence)
    pairs = {
        "project": (True, evidence.in_project),
        "size": (wanted.get("size_gb"), volume.size_gb),
        "snapshot": (wanted.get("snapshot_id"), origin.snapshot_id),
        "source volume": (None, origin.source_volume_id),
    }
    unwritten = volume.image_id is None and volume.status in UNFINISHED
    if not (wanted.get("snapshot_id") or unwritten):
        pairs["image"] = (wanted.get("image_id"), volume.image_id)
    differs = [name for name, (asked, is_) in pairs.items() if asked != is_]
    return f"it is of another {' and '.join(differs)} than was asked for" if differs else None


def _is_where_it_was(evidence: Evidence) -> str | None:
    volume = evidence.volume
    if volume.migration_status is not None:
        return f"Cinder migrates it, or has done so ({volume.migration_status})"
    return f"it is {volume.status}" if "deleting" in volume.status else None


# --- whether anybody has a use for it -------------------------------------------------------------


def _is_unattached(evidence: Evidence) -> str | None:
    if evidence.attachments is None:
        return "Cinder does not say what is attached of it"
    if evidence.attachments:
        return f"Cinder has an attachment of it ({', '.join(evidence.attachments)})"
    return None


def _has_no_dependents(evidence: Evidence) -> str | None:
    for kind, ids in vars(evidence.dependents).items():
        if ids is None:
            return f"Cinder does not say whether there are {kind} of it"
        if ids:
            return f"there are {kind} of it ({', '.join(ids)})"
    return None


def _origin(evidence: Evidence) -> Origin:
    return evidence.volume.origin


#: States of a volume that Cinder is still making.
UNFINISHED = frozenset({"creating", "downloading"})

Check = Callable[[Evidence], str | None]
_IDENTITY: tuple[Check, ...] = (
    _is_wanted,
    _is_the_only_one,
    _is_ours,
    _is_of_that_time,
    _is_as_wanted,
    _is_where_it_was,
)
_USES: tuple[Check, ...] = (_is_unattached, _has_no_dependents)
