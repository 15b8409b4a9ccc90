"""Drift that comes about in the midst of a storm: looks find it afterwards, and repairs mend it.

Somebody does past everybody what lost requests, other clients and crashed hosts do.  The storm goes
on over it: servers of it are deleted, hosts lose power, are fenced and come back.  What is
still there when all is at rest has to be found, and nothing else; its repair has to take it away,
and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast
from uuid import NAMESPACE_OID, uuid5

import pytest

from aggregates.errors import RepairError
from aggregates.finding import Finding, FindingState
from handlers.drift import judge
from handlers.drift.judge import Sight
from handlers.repair import RepairDrift
from ledger.log.unit import Unit
from tests.simulation import drift
from tests.simulation.cloud import Cloud
from tests.simulation.storm import Storm
from tests.simulation.test_simulation import FEWER_SEEDS, FIRST
from tests.world import CONTEXT

TICKS = 400
#: Plants in one storm, after so many ticks.
PLANTED_AT = (100, 150, 200, 250)
#: Of what somebody puts there all has to be met at rest in so many storms.
SAMPLE = 4
#: As which it may be found: the storm may have deleted the server meanwhile.
FOUND_AS = {
    "reservation": {"reservation_unknown", "owner_gone"},
    "attachment": {"attachment_unknown", "owner_gone"},
    "record": {"connection_left", "record_left"},
    "secret": {"secret_left"},
}
#: Nobody mends these: the ledger knows no server that had the volume.
BY_HAND = {"secret"}


class PlantingStorm(Storm):
    """`there`: whether each of what was planted is still there, by its id; `kinds`: what it is."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, TICKS)
        self.there: dict[str, Callable[[], bool]] = {}
        self.kinds: dict[str, str] = {}
        self._ticked = 0

    def _tick(self) -> None:
        self._ticked += 1
        if self._ticked in PLANTED_AT:
            which = (self.seed + PLANTED_AT.index(self._ticked)) % len(FOUND_AS)
            self._plant(list(FOUND_AS)[which])
        super()._tick()

    def _plant(self, kind: str) -> None:
        id_, there = getattr(self, f"_{kind}")(str(uuid5(NAMESPACE_OID, f"{kind} of nobody")))
        self.cloud.note(f"somebody plants a {kind}: {id_}")
        self.cloud.planted.add(id_)
        self.there[id_], self.kinds[id_] = there, kind

    def _in_cinder(self, volume_id: str, connector: dict[str, str] | None) -> Any:
        cloud = self.cloud
        cloud.cinder.add_volume(volume_id=volume_id)
        cloud.planted.add(volume_id)
        server = min(row["server_id"] for row in cloud.rows("instances"))
        row = cloud.cinder.attachment_create(volume_id, server, connector, "rw")
        if connector:
            cloud.cinder.attachment_complete(row.id)
        return row.id, lambda: row.id in cloud.cinder.attachments

    def _reservation(self, volume_id: str) -> Any:
        return self._in_cinder(volume_id, None)

    def _attachment(self, volume_id: str) -> Any:
        return self._in_cinder(volume_id, {"host": min(self.cloud.states), "initiator": "iqn.p"})

    def _record(self, id_: str) -> Any:
        """Of an attachment that is gone: like one that some host has, if any has one."""
        known = [(n, r) for n, rs in sorted(self.cloud.records.items()) for r in rs.values()]
        if not known:
            return id_, lambda: False
        name, record = known[0]
        self.cloud.records[name][id_] = replace(record, attachment_id=id_)
        return id_, lambda: id_ in self.cloud.records[name]

    def _secret(self, id_: str) -> Any:
        state = self.cloud.states[min(self.cloud.states)]
        with state.edit() as changed:
            changed["secrets"][id_] = "digest"
        return id_, lambda: id_ in state.read()["secrets"]

    def rest(self) -> None:
        self._checked(self._come_to_rest)


def look(cloud: Cloud) -> dict[str, Finding]:
    """What a look makes of all that differs, by the id of what it is about."""
    found: dict[str, Finding] = {}
    for row, drift_class in list(drift.cases(cloud)):
        unit = Unit(cloud.store)
        finding = unit.get(Finding, judge.id_of(drift_class, row))
        sight = Sight(look_id="look", position=len(cloud.store.log))
        judge.see(finding, drift_class, row, sight)
        unit.save(CONTEXT)
        found[row.id.rpartition("/")[2]] = finding
    return found


def picture(cloud: Cloud) -> dict[str, Any]:
    """All there is in Cinder and on hosts but what was planted."""

    def own(ids: Any) -> Iterator[str]:
        return (id_ for id_ in ids if id_ not in cloud.planted)

    def mine(had: dict[str, Any], theirs: set[str]) -> dict[str, Any]:
        return {id_: had[id_] for id_ in own(had) if id_ not in theirs}

    model, hosts = cloud.cinder, {name: state.read() for name, state in cloud.states.items()}
    rows, volumes = model.attachments, model.volumes
    return {
        "attachments": {i: (rows[i].status, rows[i].host, rows[i].mode) for i in own(rows)},
        "volumes": {i: s for i in own(volumes) if (s := volumes[i].status) != "deleting"},
        "guests": {name: seen["guests"] for name, seen in hosts.items()},
        **{
            part: {n: mine(seen[part], cloud.planted_on(n)) for n, seen in hosts.items()}
            for part in ("connected", "secrets")
        },
        "records": {name: sorted(own(known)) for name, known in cloud.records.items()},
    }


def adopted(cloud: Cloud) -> set[str]:
    """Bare reservations that an attach of the same server has taken over (decision 0007)."""
    return cloud.planted & {str(each.id) for each in cloud.attachments()}


def repair(cloud: Cloud, finding: Finding) -> None:
    had = [row for row in cloud.rows("attachments") if row.get("host")]
    fleet = replace(
        cloud.fleet,
        had=lambda server: {row["host"] for row in had if row["server_id"] == server},
    )
    request = RepairDrift(finding_id=str(finding.id), reason="found by two looks")
    cloud.requests.repair(request, CONTEXT, fleet, f"repair {finding.id}")


def planted_in(seed: int) -> Counter[str]:
    """A storm with plants, and all that becomes of them; what of them was there at rest."""
    storm = PlantingStorm(seed)
    storm.blow_over()
    cloud = storm.cloud
    cloud.planted -= adopted(cloud)
    there = {id_ for id_, is_there in storm.there.items() if is_there()} & cloud.planted
    for state in (FindingState.SUSPECTED, FindingState.CONFIRMED):
        found = {id_: each for id_, each in look(cloud).items() if id_ in cloud.planted}
        assert {id_ for id_ in found if id_ in storm.kinds} == there
        assert {each.state for each in found.values()} <= {state}
    for id_ in there:
        names = cast("Any", found[id_].found).drift_class
        assert names in FOUND_AS[storm.kinds[id_]]
    before = picture(cloud)
    for id_ in sorted(there):
        if storm.kinds[id_] in BY_HAND:
            with pytest.raises(RepairError):
                repair(cloud, found[id_])
            continue
        repair(cloud, found[id_])
        storm.rest()
    left = {row.id.rpartition("/")[2] for row, _ in drift.cases(cloud)} & cloud.planted
    assert left == {id_ for id_ in there if storm.kinds[id_] in BY_HAND}
    assert picture(cloud) == before
    return Counter(storm.kinds[id_] for id_ in there)


def test_what_comes_about_in_a_storm_is_found_after_it_and_mended() -> None:
    met = sum((planted_in(seed) for seed in range(SAMPLE)), Counter[str]())
    assert set(met) == set(FOUND_AS), "each is there at rest in some storm"


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(FIRST, FIRST + FEWER_SEEDS))
def test_so_it_is_in_many_storms(seed: int) -> None:
    planted_in(seed)
