"""Each class of drift, planted in a cloud at rest, is found, and nothing else is."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter

import pytest

from tests.simulation import drift
from tests.simulation.cloud import Cloud
from tests.simulation.disk_plants import ON_DISKS
from tests.simulation.plants import (
    IN_CINDER,
    ON_HOSTS,
    Ground,
    NotNowError,
    Plant,
    attached,
    free,
    guest,
    servers,
)
from tests.simulation.storm import Storm

#: One storm in some dozens leaves something of everything: attached volumes, free ones, deleted
#: servers.  It is looked for from where one was found last.
TICKS = 250
SEEDS = range(48, 108)


def has_something_of_everything(cloud: Cloud) -> bool:
    ground = Ground(cloud)
    gone, there = servers(ground, deleted=True), servers(ground, deleted=False)
    try:
        with guest(ground, with_disk=True):
            return all((gone, there, free(ground), list(attached(ground))))
    except NotNowError:
        return False


@pytest.fixture(scope="module")
def rested() -> Cloud:
    for seed in SEEDS:
        storm = Storm(seed, ticks=TICKS)
        storm.blow_over()
        if has_something_of_everything(storm.cloud) and not list(drift.cases(storm.cloud)):
            return storm.cloud
    raise AssertionError("no storm leaves something of everything")


@pytest.fixture
def cloud(rested: Cloud) -> Iterator[Cloud]:
    """As the storm has left it; what a test plants there goes with the test."""
    told = vars(rested.cinder)
    before = copy.deepcopy({name: told[name] for name in ("volumes", "attachments", "_by_volume")})
    hosts = {name: state.read() for name, state in rested.states.items()}
    records = {name: dict(known) for name, known in rested.records.items()}
    yield rested
    told.update(before)
    rested.records.update(records)
    for name, state in rested.states.items():
        with state.edit() as changed:
            changed.clear()
            changed.update(hosts[name])


@pytest.mark.parametrize("plant", IN_CINDER + ON_HOSTS + ON_DISKS, ids=attrgetter("__name__"))
def test_what_is_planted_is_found_and_nothing_else(plant: Plant, cloud: Cloud) -> None:
    assert not list(drift.found(cloud))
    planted = plant(Ground(cloud))
    assert Counter(each.name for _, each in drift.cases(cloud)) == planted
