"""The type of a class of drift: one way to differ, its severity, and its repair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from handlers.drift.rows import Party, Row, ServerRow


class Severity(StrEnum):
    """How urgent it is."""

    CRITICAL = "critical"  # data is at risk
    WARNING = "warning"  # something is stuck, lost or blocked
    INFO = "info"  # it wastes resources, and does no harm


@dataclass(frozen=True, kw_only=True)
class DriftClass:
    """One way to differ.

    `is_drift`: the predicate on one row, called only if all `parties` are known.  None: the row
    does not say enough.  For a server it returns hosts (`hosts_of`).  `row`: None for a fact of the
    log, which no look finds; the view `drift` has it (decision 0058).  `repair`: a row of
    `handlers.drift.repairs`; None: `by_hand` says why, and what an operator does.  `or_else`: the
    repair if the guest does not have what `repair` would keep.  `again`: the parties that the
    repair asks again before it changes anything.  `asked_for`: an operator must request the repair,
    whatever the settings say.  `lasts_s`: seconds until a look confirms it, if longer than
    `judge.APART_S`.  `shows`: while a finding is open, a host shows a guest or volume that it
    should not have (handlers.requests.presence).  `stops_repairs`: while a finding is open, no
    repair and no automatic act on its volume begins, because the data may be another volume's.
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
        """The hosts whose reports make the row a case of the class; it must be one."""
        if Party.HOST not in self.parties:
            return frozenset()
        if isinstance(row, ServerRow):
            hosts: frozenset[str] = self.is_drift(row)
            return hosts
        return frozenset() if row.about.host is None else frozenset({row.about.host})
