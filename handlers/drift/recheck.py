"""Whether a repair may continue: its finding still holds, and nothing in use is removed.

The class of the finding decides the first, from a row of what every party has now.  The proof of
the repair decides the second (`handlers.drift.repairs`; decision 0059).  Pure;
`ledger.reconcile.repair_effects` reads the parties.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aggregates.base import About
from aggregates.finding import Finding
from handlers.drift import rows
from handlers.drift.beside_words import NOVA, advice
from handlers.drift.classes import BY_NAME, DriftClass
from handlers.drift.judge import differs
from handlers.drift.proofs import ProofFacts, is_hidden
from handlers.drift.repairs import REPAIRS, RESIZED
from handlers.drift.rows import Party
from host_agent.shared.contract.outputs import HostHas
from host_agent.shared.contract.wire import WireError, read

GONE, CHANGED, UNPROVEN = "drift_gone", "drift_changed", "drift_unproven"


def cannot(
    drift: DriftClass,
    key: str,
    differs: Mapping[str, Any],
    about: About,
    *,
    resized: bool = False,
) -> str | None:
    """Why the class's repair can never work for this finding, and what an operator does instead;
    None: it may.  Offers and requests call it; the proof checks the same again.

    `resized`: the subject is in a resize that was neither confirmed nor reverted.
    """
    if NOVA in differs:
        return advice(drift.name, differs, about)
    row = REPAIRS.get(drift.repair or "")
    if row is None:
        return None
    if resized and row.after_resize:
        return RESIZED.capitalize()
    return row.cannot(key, differs) if row.cannot else None


def refusal(flow: str, finding: Finding, asked: ProofFacts) -> tuple[str, str] | None:
    """Why the repair changes nothing: a code and a sentence; None: it may continue."""
    assert finding.found is not None, "only what was found is repaired"
    if REPAIRS[flow].asks_hosts and not _is_readable(asked.shown):
        return UNPROVEN, "What the host says cannot be read. Nothing was changed."
    drift = BY_NAME[finding.found.drift_class]
    if asked.row is not None and (silent := rows.silent(asked.row).intersection(drift.parties)):
        who = f"Host {asked.lane.host}" if Party.HOST in silent else "Cinder"
        return UNPROVEN, f"{who} did not answer. Nothing was changed; run `drift run` again."
    if asked.row is None or not drift.is_drift(asked.row):
        return GONE, f"Finding no longer holds ({drift.name}). Nothing was changed."
    parties = [party for party in drift.parties if party is not Party.HOST]
    now = differs(asked.row, parties)
    for party in parties:
        if not _agree(finding.differs.get(party.value), now[party.value]):
            then = finding.differs.get(party.value)
            words = f"What the {party.value} says has changed from {then} to {now[party.value]}"
            return CHANGED, f"{words}. Nothing was changed; run `drift run` again."
    why = is_hidden(asked) or REPAIRS[flow].proof(asked)
    return (UNPROVEN, f"{why} Nothing was changed.") if why else None


def _is_readable(shown: dict[str, Any]) -> bool:
    """Whether the host reported every field: a missing one does not count as "no"."""
    try:
        read(shown, HostHas)
    except WireError:
        return False
    return HostHas.__annotations__.keys() <= shown.keys()


def _agree(then: Any, now: Any) -> bool:
    """Fields that one of them lacks are not compared."""
    if isinstance(then, dict) and isinstance(now, dict):
        comparable = [
            name for name in then.keys() & now.keys() if None not in (then[name], now[name])
        ]
        return all(then[name] == now[name] for name in comparable)
    return bool(then == now)
