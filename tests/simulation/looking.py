"""What an operator does in a simulated cloud: has looks made, and repairs what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import NAMESPACE_OID, uuid5

from aggregates.finding import Finding
from handlers.drift import judge
from handlers.drift.judge import Sight
from handlers.drift.rows import Row
from handlers.requests.repair import RepairDrift
from ledger.log.unit import Unit
from tests.simulation import drift
from tests.world import CONTEXT

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

_LOOK = str(uuid5(NAMESPACE_OID, "look"))


def look(
    cloud: Cloud, about: Callable[[Row], bool] = lambda _: True
) -> Iterator[tuple[Row, Finding]]:
    """What a look makes of all that differs, of these rows."""
    for row, drift_class in list(drift.cases(cloud)):
        if not about(row):
            continue
        unit = Unit(cloud.store)
        finding = unit.get(Finding, judge.id_of(drift_class, row))
        sight = sight_of(cloud)
        judge.see(finding, drift_class, row, sight)
        unit.save(CONTEXT)
        yield row, finding


def sight_of(cloud: Cloud) -> Sight:
    """That of a look that has heard all hosts."""
    heard = frozenset(cloud.states)
    return Sight(look_id=_LOOK, position=len(cloud.store.log), heard=heard)


def repair(cloud: Cloud, finding: Finding) -> None:
    """Have it repaired.  Raises what `Requests.repair` does."""
    had = [row for row in cloud.rows("attachments") if row.get("host")]
    fleet = replace(
        cloud.fleet,
        had=lambda server: {row["host"] for row in had if row["server_id"] == server},
    )
    request = RepairDrift(finding_id=str(finding.id), reason="found by two looks")
    key = f"repair {finding.id} {len(cloud.store.log)}"
    cloud.requests.repair(request, CONTEXT, fleet, key)
