"""Whether a finding that has just been confirmed is repaired without anybody's asking.

Off, unless its class is named by the settings.  What a person would notice by now stops it: many
repairs in an hour, or repairs of more than a small share of what one host has.  Whether a repair
may go on is its own to find out (handlers.drift.recheck): nobody's evidence is needed less.
"""

from __future__ import annotations

from dataclasses import dataclass

from aggregates.finding import Finding, FindingState
from aggregates.server import RUNNING
from handlers.drift.classes import BY_NAME
from handlers.drift.rows import Party

#: The classes that settings may name.
CLASSES = frozenset(
    each.name for each in BY_NAME.values() if each.repair is not None and not each.asked_for
)
#: Of what a host has attached, automatic repairs touch at most this share in an hour, or one.
HOST_SHARE_MAX = 0.05


@dataclass(frozen=True, kw_only=True)
class RepairPolicy:
    """The classes that may be repaired so, and how many repairs in an hour, of all of them."""

    classes: frozenset[str] = frozenset()
    per_hour_max: int = 10


@dataclass(frozen=True, kw_only=True)
class SoFar:
    """Automatic repairs that were begun in the last hour: all, and of the finding's server's host,
    which has so many attachments.
    """

    begun: int
    begun_there: int
    attachments_there: int


def _powers(finding: Finding) -> list[str]:
    """The power states of a server's guest, by all hosts that show it."""
    on_hosts = finding.differs.get(Party.HOST.value)
    return [power for _, power in on_hosts] if isinstance(on_hosts, list) else []


def why_not(finding: Finding, policy: RepairPolicy, so_far: SoFar) -> str | None:
    """Why it is left to people, in words; None: it is to be repaired now."""
    found = finding.found
    drift = BY_NAME.get(found.drift_class) if found else None
    if drift is None or drift.name not in CLASSES or drift.name not in policy.classes:
        return "its class is not repaired automatically"
    if finding.state is not FindingState.CONFIRMED or finding.repairing is not None:
        return "it is not confirmed, or an operation works on it"
    if any(power in RUNNING for power in _powers(finding)):
        return "a guest runs there; only a person has it powered off"
    if finding.failed:
        return "its last repair failed"
    if so_far.begun >= policy.per_hour_max:
        return f"{so_far.begun} automatic repairs were begun in the last hour, the limit"
    most = max(1, int(HOST_SHARE_MAX * so_far.attachments_there))
    if so_far.begun_there >= most:
        of = f"{so_far.begun_there} of {so_far.attachments_there} attachments of its host"
        return f"{of} were repaired in the last hour; more would be too large a share"
    return None
