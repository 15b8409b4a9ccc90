"""Reads that are true, but not now, or not whole, or not in order: of Cinder, and of hosts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from host_agent.shared.faults import Faults
from host_agent.simulated.adapters import SimulatedGuests, SimulatedStorage
from host_agent.simulated.host_state import HostState, guest_state
from tests.contracts import cinder_worlds as worlds
from tests.contracts.cinder_worlds import SimulatedWorld, connector, new_uuid, refusal


@pytest.fixture(params=[worlds.direct_world, worlds.http_world], ids=["direct", "http"])
def cinder(request: pytest.FixtureRequest) -> Iterator[SimulatedWorld]:
    with request.param() as made:
        yield made


def test_a_stale_read_of_cinder_is_what_was_so_then(cinder: SimulatedWorld) -> None:
    """Everything in it is of one moment, and what is new since is not there."""
    volume, server = cinder.new_volume(), new_uuid()
    rule: dict[str, Any] = {"do": "stale", "count": None, "match": {"volume_id": volume}}
    cinder.faults.replace([{"call": "*", **rule}])
    row = cinder.port.attachment_create(volume, server)
    assert cinder.port.volume(volume).status == "available"
    assert cinder.port.attachments(volume, server) == []
    assert refusal(lambda: cinder.port.attachment(row.id)).code == "not_found"
    cinder.port.attachment_update(row.id, connector())
    assert cinder.port.attachment(row.id).status == "reserved"
    for changes, status in ((1, "reserved"), (2, "available"), (9, "available")):
        cinder.faults.replace([{"call": "volume_show", **rule, "changes": changes}])
        assert cinder.port.volume(volume).status == status
    cinder.faults.replace([])
    assert cinder.port.volume(volume).status == "attaching"


def test_a_list_of_cinder_is_cut_and_in_another_order(cinder: SimulatedWorld) -> None:
    server = new_uuid()
    made = [cinder.port.attachment_create(cinder.new_volume(), server).id for _ in range(4)]

    def listed(*rules: dict[str, Any]) -> list[str]:
        cinder.faults.replace(list(rules))
        return [row.id for row in cinder.port.attachments(None, server)]

    whole = listed()
    assert set(whole) == set(made)
    assert listed({"call": "attachment_list", "do": "reorder"}) == whole[::-1]
    assert listed({"call": "attachment_list", "do": "cut"}) == whole[:2]


class Host:
    """Two guests, one connection."""

    def __init__(self) -> None:
        self.store, self.faults = HostState(), Faults()
        self.guests = SimulatedGuests(self.store, self.faults, "h")
        self.storage = SimulatedStorage(self.store, self.faults, "h")
        for name in "ab":
            with self.store.edit() as state:
                state["guests"][name] = guest_state(server_id=name)
                state["connected"][name] = {"driver": "iscsi", "path": f"/dev/{name}"}
                state["secrets"][name] = "digest"

    def looks(self, *rules: dict[str, Any]) -> dict[str, str]:
        """What each of its answers has, by the last letters."""
        calls = ("guests.inventory", "guests.survey", "guests.secrets", "storage.look")
        self.faults.replace([{"call": call, **rule} for call in calls for rule in rules])
        return {
            "inventory": "".join(guest.server_id for guest in self.guests.inventory()),
            "survey": "".join(guest.server_id for guest in self.guests.survey().guests),
            "secrets": "".join(self.guests.secrets()),
            "storage": "".join(thing.name[-1] for thing in self.storage.look().things),
        }


def test_what_a_host_shows_is_stale_cut_and_in_another_order() -> None:
    host = Host()
    assert set(host.looks().values()) == {"ab"}
    assert set(host.looks({"do": "stale"}).values()) == {"a"}
    assert set(host.looks({"do": "stale", "changes": 2}).values()) == {""}
    assert set(host.looks({"do": "cut"}).values()) == {"a"}
    assert set(host.looks({"do": "reorder"}).values()) == {"ba"}
    assert set(host.looks().values()) == {"ab"}
