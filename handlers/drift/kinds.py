"""What a class of drift is: one way to differ, how bad that is, and what mends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from handlers.drift.rows import Party, Row, ServerRow


class Severity(StrEnum):
    """How soon somebody has to see to it."""

    CRITICAL = "critical"  # data is at risk
    WARNING = "warning"  # something is stuck, lost or in the way
    INFO = "info"  # it costs something, and hurts nobody


@dataclass(frozen=True, kw_only=True)
class DriftClass:
    """One way to differ.

    `is_drift` is asked of a row only if all `parties` are known; it says None where that is not
    enough, and of a server it tells the hosts (`hosts_of`).  `row` None: it is no difference that a
    look finds, but a fact of the log, which the view `drift` shows (decision 0058).
    `meaning`: a sentence for people.
    `repair`: a row of `handlers.drift.repairs`; None: `by_hand` says why, and what a person does.
    `again`: whom the repair asks anew, at its own moment, before it does anything.  `or_else`: the
    repair for the case that the guest does not have what `repair` would keep for it.  `asked_for`:
    somebody has to ask for the repair, whatever the settings say.  `lasts_s`: how long it has to be
    there until a look confirms it, where that is longer than for all (`judge.APART_S`).  `shows`:
    as long as it is open, a host shows a guest or a volume that it is not to have
    (handlers.requests.presence).
    `stops_repairs`: while a finding of it is open, no repair and no automatic act for its volume is
    begun: what it shows may be another volume's data.
    """

    name: str
    row: type[Row] | None
    parties: tuple[Party, ...]
    is_drift: Callable[[Any], Any]
    severity: Severity
    meaning: str
    repair: str | None = None
    or_else: str | None = None
    by_hand: str = ""
    again: tuple[Party, ...] = ()
    asked_for: bool = False
    lasts_s: float = 0.0
    shows: bool = False
    stops_repairs: bool = False

    def hosts_of(self, row: Row) -> frozenset[str]:
        """The hosts by whose word the row, which is a case of the class, is one."""
        if Party.HOST not in self.parties:
            return frozenset()
        if isinstance(row, ServerRow):
            hosts: frozenset[str] = self.is_drift(row)
            return hosts
        return frozenset() if row.about.host is None else frozenset({row.about.host})
