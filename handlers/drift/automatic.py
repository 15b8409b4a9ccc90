"""Whether a finding that was just confirmed is repaired automatically.

Off unless the settings name its class.  Two limits stop it when something is badly wrong: repairs
in an hour, and the share of one host's attachments.  The repair itself needs the same evidence as
one that an operator requests (handlers.drift.recheck).
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
#: Automatic repairs touch at most this share of a host's attachments in an hour, but always one.
HOST_SHARE_MAX = 0.05


@dataclass(frozen=True, kw_only=True)
class RepairPolicy:
    """The classes that may be repaired automatically, and how many repairs an hour, of all."""

    classes: frozenset[str] = frozenset()
    per_hour_max: int = 10


@dataclass(frozen=True, kw_only=True)
class SoFar:
    """Automatic repairs begun in the last hour: all, and those on the host of the finding's server,
    with the number of attachments that the host has.
    """

    begun: int
    begun_there: int
    attachments_there: int


def _powers(finding: Finding) -> list[str]:
    """The power states of a server's guest on all hosts that show it."""
    on_hosts = finding.differs.get(Party.HOST.value)
    return [power for _, power in on_hosts] if isinstance(on_hosts, list) else []


def why_not(finding: Finding, policy: RepairPolicy, so_far: SoFar) -> str | None:
    """Why the finding is left to an operator; None: it is repaired now."""
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
