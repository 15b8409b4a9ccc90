"""Each class of drift, planted in a cloud at rest, is found, and nothing else is."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import pytest

from handlers.drift.rows import About
from host_agent.shared.cinder.client import MADE_FOR
from tests.simulation import drift
from tests.simulation.cloud import Cloud
from tests.simulation.storm import Storm

#: A storm that leaves something of everything: attached volumes, free ones, deleted servers.
TICKS = 250

Plant = Callable[[Cloud], Counter[str]]


def attached(cloud: Cloud) -> Iterator[Any]:
    """Cinder's rows that a host uses, each alone with its volume."""
    rows = sorted(cloud.cinder.attachments.values(), key=lambda row: row.id)
    alone = Counter(row.volume_id for row in rows)
    return (row for row in rows if row.status == "attached" and alone[row.volume_id] == 1)


def free(cloud: Cloud) -> str:
    """A volume that a server has had, and nobody has."""
    had = {row["volume_id"] for row in cloud.rows("attachments")}
    volumes = sorted(cloud.cinder.volumes.values(), key=lambda volume: volume.id)
    return next(v.id for v in volumes if v.id in had and v.status == "available")


def server(cloud: Cloud, *, deleted: bool) -> str:
    rows = sorted(cloud.rows("instances"), key=lambda row: str(row["server_id"]))
    return next(str(row["server_id"]) for row in rows if row["deleted"] is deleted)


def reservation_unknown(cloud: Cloud) -> Counter[str]:
    """A request that came when its sender had gone."""
    cloud.direct.attachment_create(free(cloud), server(cloud, deleted=False))
    return Counter(["reservation_unknown"])


def attachment_unknown(cloud: Cloud) -> Counter[str]:
    connector = {"host": "compute-1", "initiator": "iqn.planted"}
    cloud.direct.attachment_create(free(cloud), server(cloud, deleted=False), connector)
    return Counter(["attachment_unknown", "volume_status_differs"])  # which is "attaching"


def owner_gone(cloud: Cloud) -> Counter[str]:
    cloud.direct.attachment_create(free(cloud), server(cloud, deleted=True))
    return Counter(["owner_gone"])


def attachment_lost(cloud: Cloud) -> Counter[str]:
    """Somebody deletes it with a service token; Cinder then calls its volume available."""
    row = next(attached(cloud))
    cloud.cinder.drop_attachment(row.id)
    cloud.cinder.recompute(cloud.cinder.volume(row.volume_id))
    return Counter(["attachment_lost"])


def attachment_status_differs(cloud: Cloud) -> Counter[str]:
    """A late update."""
    next(attached(cloud)).status = "attaching"
    return Counter(["attachment_status_differs"])


def attachment_host_differs(cloud: Cloud) -> Counter[str]:
    next(attached(cloud)).host = "elsewhere"
    return Counter(["attachment_host_differs"])


def attachment_mode_differs(cloud: Cloud) -> Counter[str]:
    known = {r["attachment_id"]: r.get("access_mode") for r in cloud.rows("attachments")}
    row = next(row for row in attached(cloud) if known[row.id] is not None)
    row.mode = "ro" if known[row.id] == "rw" else "rw"
    return Counter(["attachment_mode_differs"])


def volume_gone(cloud: Cloud) -> Counter[str]:
    del cloud.cinder.volumes[next(attached(cloud)).volume_id]
    return Counter(["volume_gone"])


def volume_status_differs(cloud: Cloud) -> Counter[str]:
    """Somebody calls begin_detaching, and goes home."""
    cloud.cinder.volume(next(attached(cloud)).volume_id).status = "detaching"
    return Counter(["volume_status_differs"])


def volume_of_nobody(cloud: Cloud) -> Counter[str]:
    new = str(uuid5(NAMESPACE_OID, "made for nobody"))
    volume = cloud.cinder.add_volume(volume_id=new)
    volume.metadata[MADE_FOR] = "an operation"
    return Counter(["volume_of_nobody"])


PLANTS: tuple[Plant, ...] = (
    reservation_unknown,
    attachment_unknown,
    owner_gone,
    attachment_lost,
    attachment_status_differs,
    attachment_host_differs,
    attachment_mode_differs,
    volume_gone,
    volume_status_differs,
    volume_of_nobody,
)


@pytest.fixture(scope="module")
def rested() -> Cloud:
    storm = Storm(6, ticks=TICKS)
    storm.blow_over()
    return storm.cloud


@pytest.fixture
def cloud(rested: Cloud) -> Iterator[Cloud]:
    """As the storm has left it; what a test plants there goes with the test."""
    told = vars(rested.cinder)
    before = copy.deepcopy({name: told[name] for name in ("volumes", "attachments", "_by_volume")})
    yield rested
    told.update(before)


def name_of(plant: Plant) -> str:
    return plant.__name__


@pytest.mark.parametrize("plant", PLANTS, ids=name_of)
def test_what_is_planted_is_found_and_nothing_else(plant: Plant, cloud: Cloud) -> None:
    assert not list(drift.found(cloud))
    planted = plant(cloud)
    assert Counter(each.name for _, each in drift.cases(cloud)) == planted


@pytest.mark.parametrize(
    "plants",
    list(itertools.combinations(PLANTS, 2)),
    ids=lambda pair: "-".join(map(name_of, pair)),
)
@pytest.mark.deep
def test_two_at_once_do_not_hide_each_other(plants: tuple[Plant, Plant], cloud: Cloud) -> None:
    """On subjects of their own: what the first has touched is out of the second one's sight."""
    first = plants[0](cloud)
    touched = {row.about for row, _ in drift.cases(cloud)}
    with out_of_sight(cloud, touched):
        second = plants[1](cloud)
    assert Counter(each.name for _, each in drift.cases(cloud)) == first + second


@contextmanager
def out_of_sight(cloud: Cloud, touched: set[About]) -> Iterator[None]:
    """Cinder without these attachments and volumes, for a while."""
    ids = {about.volume_id for about in touched if about.volume_id is not None}
    volumes, rows = cloud.cinder.volumes, cloud.cinder.attachments
    hidden = {id_: volumes.pop(id_) for id_ in ids & volumes.keys()}
    of_them = {row.id: rows.pop(row.id) for row in list(rows.values()) if row.volume_id in ids}
    yield
    volumes.update(hidden)
    rows.update(of_them)
