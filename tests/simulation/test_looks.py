"""The look itself, over what storms leave: what it finds is what the at-rest invariants judge.

The simulation judges in memory (tests.simulation.drift), after every storm.  Here the log of a
storm goes into a database, its Cinder serves over HTTP and its hosts answer with surveys, and
`ledger.reconcile` looks at all of it, twice: both have to find the same, by one list of classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from handlers.drift import judge
from handlers.drift.judge import id_of
from host_agent.shared.contract.survey import CAPABILITY, Survey
from ledger.log.application import Ledger
from ledger.reconcile.asking import LookRequests
from projections.catalog import ALL
from projections.running.runner import ProjectionRunner
from tests.doubles.running_cinder import RunningCinder, running_cinder
from tests.simulation import drift
from tests.simulation.cloud import Cloud as Simulated
from tests.simulation.planting import PlantingStorm
from tests.simulation.storm import Storm
from tests.simulation.test_simulation import FEWER_SEEDS, FIRST
from tests.store import looking
from tests.world import CONTEXT

#: Events of a storm's log that are stored together.
TOGETHER = 200


class Looked(looking.Cloud):
    """A storm's cloud, as a look meets it."""

    def __init__(self, dsn: str, ledger: Ledger, cinder: RunningCinder, storm: Simulated) -> None:
        super().__init__(dsn, ledger, cinder)
        self.storm = storm
        events = [event for event, _ in storm.store.log]
        for at in range(0, len(events), TOGETHER):
            ledger.events.put(events[at : at + TOGETHER], context=CONTEXT)
        self.projected()
        self.db.execute(
            "UPDATE hosts SET capabilities = capabilities || jsonb_build_object(%s::text, true)",
            (CAPABILITY,),
        )
        self.db.execute(
            "INSERT INTO host_contact (host, seen_at) SELECT host, clock_timestamp() FROM hosts"
        )

    def survey(self, host: str = looking.HOST, **more: Any) -> Survey:
        [row] = self.db.execute("SELECT epoch FROM hosts WHERE host = %s", (host,)).fetchall()
        return drift.surveyed(self.storm, host, epoch=row["epoch"])

    def judged(self) -> dict[str, str]:
        """What the invariants of the simulation call drift: ids of findings, and their classes.

        But the mode of an attachment, which Cinder's lists do not tell (decision 0057).
        """
        return {
            id_of(each, row): each.name
            for row, each in drift.cases(self.storm)
            if each.name != "attachment_mode_differs"
        }

    def unexplained(self) -> set[str]:
        """Suspicions of a status that an attachment explains which is drift itself: nobody knows
        it, so nobody can ask for it while the list of its volume's attachments is cut.
        """
        strange = {row.about.volume_id for row, _ in drift.cases(self.storm)}
        asked = "SELECT finding_id, volume_id FROM findings WHERE drift_class = %s"
        rows = self.db.execute(asked, ("volume_status_differs",)).fetchall()
        return {str(row["finding_id"]) for row in rows if str(row["volume_id"]) in strange}

    def found(self) -> dict[str, tuple[str, str]]:
        self.projected()
        rows = self.db.execute(
            "SELECT finding_id, drift_class, state FROM findings WHERE state <> 'over'"
        ).fetchall()
        return {str(row["finding_id"]): (row["drift_class"], row["state"]) for row in rows}


@contextmanager
def looked_at(storm: Storm, dsn: str) -> Iterator[Looked]:
    runner = ProjectionRunner(dsn, ALL)
    runner.start()
    try:
        with Ledger(dsn) as ledger, running_cinder(storm.cloud.cinder) as cinder:
            cloud = Looked(dsn, ledger, cinder, storm.cloud)
            try:
                with cloud.answering(*storm.cloud.states):
                    yield cloud
            finally:
                cloud.close()
    finally:
        runner.stop()


def agrees(storm: Storm, dsn: str, *, hidden: bool = False) -> dict[str, str]:
    """Two looks, and the judgement in memory, of a cloud at rest; what they call drift.

    `hidden`: before that Cinder hides things.
    """
    storm.blow_over()
    with looked_at(storm, dsn) as cloud:
        judged = cloud.judged()
        if hidden:
            believes_no_list(cloud, judged)
        for state in ("suspected", "confirmed"):
            ended = cloud.look()
            assert (ended.outcome, ended.unknown, ended.in_flight) == ("completed", {}, 0)
            states = {state, "confirmed"} if hidden else {state}  # a cut list shows some as well
            assert {id_: name for id_, (name, _) in cloud.found().items()} == judged
            assert {state for _, state in cloud.found().values()} <= states
            cloud.later()
    return judged


def believes_no_list(cloud: Looked, judged: dict[str, str]) -> None:
    """What lists do not show is not gone: they are empty without the admin role, and a proxy
    cuts their pages, which have no links to what follows.
    """
    if cloud.storm.attachments():  # by which an empty list is known for what it is
        cloud.model.without_admin_role.add("attachment-ledger")
        assert (cloud.look().outcome, cloud.found()) == ("void", {})
        cloud.model.without_admin_role.clear()
    cloud.cinder.faults.replace(
        [{"call": f"{of}_list", "do": "cut", "count": None} for of in ("attachment", "volume")]
    )
    cloud.look()
    found = {id_: it for id_, it in cloud.found().items() if id_ not in cloud.unexplained()}
    assert found.items() <= {(id_, (name, "suspected")) for id_, name in judged.items()}
    cloud.cinder.faults.replace([])
    cloud.later()


def test_a_look_finds_what_the_simulation_judges(database_url: str) -> None:
    assert agrees(PlantingStorm(1), database_url, hidden=True)


def test_what_is_held_back_is_what_a_look_finds_that_is_to_believe_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each class one is too many here: all is held back, and nothing of it is lost."""
    storm = PlantingStorm(1)
    storm.blow_over()
    monkeypatch.setattr(judge, "BRAKE_COUNT", 0)
    monkeypatch.setattr(judge, "BRAKE_SHARE", 0.0)
    with looked_at(storm, database_url) as cloud:
        judged, looks = cloud.judged(), LookRequests(database_url)
        classes = sorted(set(judged.values()))
        assert len(classes) > 1
        assert sorted(cloud.look().braked) == classes
        assert cloud.found() == {}
        looks.ask({}, "asked", CONTEXT, believe=classes, reason="planted")
        for state in ("suspected", "confirmed"):
            cloud.run()
            assert cloud.found() == {id_: (name, state) for id_, name in judged.items()}
            cloud.later()
            cloud.ask()  # one that is told nothing: what is known already needs no belief


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(FIRST, FIRST + FEWER_SEEDS))
def test_a_look_at_what_a_storm_leaves_finds_nothing_that_is_not_so(
    seed: int, database_url: str
) -> None:
    """The storm's own invariants (`drift.found`) say that what is judged is only what came late."""
    agrees(Storm(seed, by_hand=False), database_url, hidden=True)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(FIRST, FIRST + FEWER_SEEDS))
def test_a_look_finds_what_was_planted_in_a_storm(seed: int, database_url: str) -> None:
    agrees(PlantingStorm(seed), database_url)
