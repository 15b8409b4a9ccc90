"""On a server that was Nova's every flow works as on one of our own, and it can go back then."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from aggregates import errors
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from handlers.requests import edits
from handlers.results.adopt import ServerFacts, judge
from handlers.results.adopted import adopt, hand_back
from handlers.results.nova_rows import Return, compared
from handlers.results.observed import ServerSeen, record
from host_agent.shared.contract.messages import (
    SERVICE_VERSION,
    Guest,
    PowerState,
    Registration,
)
from host_agent.shared.faults import Faults
from host_agent.simulated.adapters import SimulatedGuests
from ledger.config import Observe
from ledger.log.unit import Unit
from ledger.nova_beside import adopting, one_host
from ledger.nova_beside.script import script
from tests.doubles.nova_database import NovaDatabase
from tests.flows.adopted import (
    SEEN,
    adopted,
    can_be_adopted,
    rows_of_old_calls,
    seen_at_nova,
    was_novas,
)
from tests.flows.scenarios import SCENARIOS, Scenario, prepared
from tests.regressions.worlds import NEIGHBOUR, Street, guests_on, host_returns
from tests.world import CONTEXT, HOST, OTHER, World

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


#: Nova could not hand over the servers that they begin with, if there is one.
_NOT_AT_REST = re.compile(
    "boot.*|confirm|.*revert|.*evacuate|.*unshelve|.*offloaded|.*resized"
    "|root-attach|delete-fenced|convert-reserved"
)
_LEFT_OUT = [each for each in SCENARIOS if _NOT_AT_REST.fullmatch(each.name)]
_THEIRS = [each for each in SCENARIOS if not each.repairs and each not in _LEFT_OUT]
each_flow = pytest.mark.parametrize("scenario", _THEIRS, ids=lambda each: each.name)


def test_no_flow_is_left_out_that_could_begin_on_a_server_of_novas() -> None:
    there = {each.name: prepared(each) for each in _LEFT_OUT if prepared(each).instance.version}
    assert len(there) >= 20
    assert [name for name, world in there.items() if can_be_adopted(world)] == []


@each_flow
def test_every_flow_ends_as_on_a_server_of_our_own(scenario: Scenario) -> None:
    own = scenario.begin()
    assert own.run(scenario.ask(own)).outcome == "completed"
    world = adopted(scenario.begin())
    operation = world.run(scenario.ask(world))
    assert operation.outcome == "completed", operation.first_error
    assert world.summary() == own.summary()
    # What nova-compute has connected has no record of ours; it was disconnected without.
    wrong = [each for each in world.wrong() if "has records of" not in each]
    assert wrong == []


def test_the_record_of_a_connection_is_written_by_a_refresh() -> None:
    scenario = next(each for each in SCENARIOS if each.name == "refresh-running")
    world = adopted(scenario.begin())
    assert any("has records of []" in each for each in world.wrong())
    world.done(scenario.ask(world))
    assert world.wrong() == []


def _nova_has(world: World, facts: ServerFacts) -> Return:
    """What Nova lacks, whose answers are these."""
    instance = world.instance
    mappings = [world.store.load(BlockDeviceMapping, UUID(id_)) for id_ in instance.devices]
    return compared(facts, instance, mappings, HOST, NOW)


@each_flow
def test_after_every_flow_the_sql_brings_nova_to_what_the_ledger_has(scenario: Scenario) -> None:
    begun = scenario.begin()
    [facts] = seen_at_nova(begun).servers
    world = adopted(begun)
    assert _nova_has(world, facts).changes == (), "nothing was changed yet"
    world.done(scenario.ask(world))
    told = _nova_has(world, facts)
    if not told.changes:
        return  # nothing that Nova keeps is otherwise, or it cannot go back as it is
    database = NovaDatabase(facts)
    statements = script(world.server_id, told.changes)
    assert set(database.execute(statements)) == {1}, statements
    assert set(database.execute(statements)) == {0}, "what is not as it was is not changed"
    again = _nova_has(world, replace(facts, seen=database.seen()))
    assert (again.why, again.changes) == ((), ())


def test_flows_whose_changes_nova_lacks_are_among_them() -> None:
    lacking = set()
    for name in ("detach-running", "swap", "stop", "convert", "attach-running"):
        scenario = next(each for each in SCENARIOS if each.name == name)
        begun = scenario.begin()
        [facts] = seen_at_nova(begun).servers
        world = adopted(begun)
        world.done(scenario.ask(world))
        lacking |= {(each.table, *sorted(each.new)[:1]) for each in _nova_has(world, facts).changes}
    assert {table for table, _ in lacking} == {"block_device_mapping", "instances"}


def _mixed() -> World:
    scenario = next(each for each in SCENARIOS if each.name == "mixed-reboot")
    return scenario.begin()


def test_nothing_is_done_before_the_host_has_shown_the_guest_as_it_is_to_be() -> None:
    world = adopted(_mixed(), agent=False)
    with pytest.raises(errors.UnshownServerError, match=HOST):
        world.act("stop")
    volume_id = world.volumes[0]
    world.ports["guests"].unplug(world.server_id, volume_id)
    world.register(HOST)
    with pytest.raises(errors.UnshownServerError):
        world.detach(world.volumes[1])


def test_a_server_whose_deletion_waits_is_not_handed_back() -> None:
    """Nobody would delete it any more; and the operation whose end was to begin that could not end.

    What it waits for is a claim of the volume alone, of a server that shares it.
    """
    world = Street(multiattach=True, encrypted=False)
    world.done(world.attach())
    [facts] = seen_at_nova(world).servers
    adopted(world)
    world.add_neighbour(HOST)
    with world.meant(NEIGHBOUR):
        getting = world.attach()
    world.delete()
    assert not world.instance.claims
    assert "deleted" in " ".join(_nova_has(world, facts).why)
    world.done(getting)
    assert world.instance.deleted


def test_what_was_handed_back_is_watched_again_and_can_be_adopted_anew() -> None:
    world = adopted(_mixed())
    rows = rows_of_old_calls(world)

    def back(unit: Unit) -> None:
        hand_back(unit.get(Instance, world.server_id), rows, "not yet", SEEN, unit)

    facts = seen_at_nova(world)
    unit = Unit(world.store)
    back(unit)
    unit.save(CONTEXT)
    with pytest.raises(errors.ObservedServerError):
        world.act("stop")
    assert {each.origin for each in world.attachments()} == {"nova"}
    assert {str(each.id) for each in world.attachments()} == set(rows.values())

    # A look finds nothing new, and it can go over once more.
    [server] = facts.servers
    mapped = [str(each.id) for each in world.mappings()]
    sight = ServerSeen(
        server_id=world.server_id,
        server=server.seen,
        attachments=server.attachments,
        mapped=mapped,
        seen=SEEN,
        asked=SEEN,
    )
    unit = Unit(world.store)
    assert record(sight, unit)
    assert unit.save(CONTEXT) == 0
    assert judge(facts, closed=True)[0].refusals == ()


def test_a_server_that_changed_since_the_look_is_not_taken() -> None:
    world, verdict = was_novas(_mixed())
    other = replace(verdict.taken[0], attachment_id=verdict.taken[1].attachment_id)
    unit = Unit(world.store)
    with pytest.raises(errors.ChangedSinceError):
        adopt(replace(verdict, taken=(other,)), HOST, "it goes over", SEEN, unit)


def test_a_host_is_not_handed_back_before_it_has_shown_that_it_holds_nothing_of_others() -> None:
    """What it may still have of a server is a sign that keeps the server from being started."""
    world = adopted(_mixed())
    world.done(world.act("resize", destination=OTHER))
    world.fence(HOST)
    world.done(world.act("confirm_resize"))

    def on_host(change: Callable[[Host], None]) -> None:
        unit = Unit(world.store)
        change(unit.get(Host, HOST))
        unit.save(CONTEXT)

    with pytest.raises(errors.HostUnaccountedError):
        on_host(lambda host: host.hand_back("not yet"))
    on_host(lambda host: host.unfence("power is back"))
    with pytest.raises(errors.ShownElsewhereError, match="perhaps its guest"):
        world.act("reboot")
    with pytest.raises(errors.HostUnaccountedError):
        on_host(lambda host: host.hand_back("not yet"))
    SimulatedGuests(world.hosts[HOST], Faults(), HOST).remove(world.server_id)
    world.records[HOST].clear()
    world.register(HOST)
    on_host(lambda host: host.hand_back("not yet"))
    world.done(world.act("reboot"))


def test_a_host_that_returns_is_not_told_to_release_what_is_novas(tmp_path: Path) -> None:
    """Nova has moved the server, and has not cleaned up behind it yet."""
    scenario = next(each for each in SCENARIOS if each.name == "refresh-running")
    world = adopted(scenario.begin())
    world.done(scenario.ask(world))
    [server] = seen_at_nova(world).servers
    unit = Unit(world.store)
    hand_back(unit.get(Instance, world.server_id), {}, "not yet", SEEN, unit)
    unit.save(CONTEXT)
    moved = ServerSeen(
        server_id=world.server_id,
        server=replace(server.seen, host="novas"),
        attachments=[replace(each, host="novas") for each in server.attachments],
        seen=SEEN,
        asked=SEEN,
    )
    unit = Unit(world.store)
    assert record(moved, unit)
    unit.save(CONTEXT)
    records = dict(world.records[HOST])
    world.fence(HOST)
    host_returns(world, HOST, tmp_path)
    assert (set(guests_on(world, HOST)), dict(world.records[HOST])) == ({world.server_id}, records)
    assert records
    assert not world.store.load(Host, Host.id_of(HOST)).suspect


def test_a_host_that_shows_a_volume_where_it_is_not_to_be_is_not_handed_back() -> None:
    """Nobody could take the sign back any more, so nothing could be done with the volume."""
    world = adopted(World(volumes=2))

    def shows(*volumes: str) -> None:
        guest = Guest(
            server_id=world.server_id,
            name="theirs",
            power_state=PowerState.RUNNING,
            volumes=volumes,
        )
        said = Registration(service_version=SERVICE_VERSION, capabilities={}, guests=(guest,))
        world.service.register(HOST, said, CONTEXT)

    def goes_back() -> None:
        world.service.change_host(HOST, lambda host: host.hand_back("not yet"), CONTEXT)

    shows(world.volumes[1])
    with pytest.raises(errors.HostUnaccountedError):
        goes_back()
    shows()
    goes_back()


def test_a_server_stays_while_cinder_does_not_tell_what_its_old_calls_made() -> None:
    world = _mixed()
    [facts] = seen_at_nova(world).servers
    adopted(world)
    assert _nova_has(world, facts).why == ()
    silent = {id_: replace(each, holders=()) for id_, each in facts.volumes.items()}
    [why] = _nova_has(world, replace(facts, volumes=silent)).why
    assert "Cinder did not tell" in why


def test_a_disk_that_was_attached_anew_takes_its_tag_back_to_nova() -> None:
    """A program in the guest finds its disk by it in Nova's metadata."""
    world = World(volumes=1)
    world.done(world.attach(tag="database"))
    [facts] = seen_at_nova(world).servers
    adopted(world)
    world.done(world.detach())
    world.done(world.attach(tag="backup"))
    told = _nova_has(world, facts)
    database = NovaDatabase(facts)
    assert database.execute(script(world.server_id, told.changes)) == [1]
    [mapping] = database.seen().mappings or ()
    assert mapping.tag == "backup"
    again = _nova_has(world, replace(facts, seen=database.seen()))
    assert (again.why, again.changes) == ((), ())


def test_what_was_set_of_a_server_is_told_when_it_goes_back() -> None:
    """Nova's API takes it, and nobody else would do it."""
    world = _mixed()
    [facts] = seen_at_nova(world).servers
    adopted(world)
    before = _nova_has(world, facts).notes
    for wanted in ({"name": "new"}, {"name": "theirs", "description": "mine"}):
        edit = partial(edits.update, wanted=wanted)
        world.requests.edit(Instance, world.server_id, edit, CONTEXT)
        [told] = set(_nova_has(world, facts).notes) - set(before)
        assert "metadata" in told


def test_what_its_owner_changes_between_look_and_return_keeps_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nova would delete a volume with its server that is to be kept."""
    world = _mixed()
    facts = seen_at_nova(world)
    adopted(world)
    [mapping, *_] = world.mappings()
    flag = partial(
        edits.set_delete_on_termination,
        server_id=world.server_id,
        volume_id=str(mapping.volume_id),
        value=not mapping.delete_on_termination,
    )

    def changed(*compare: Any) -> Return:
        told = compared(*compare)
        world.requests.edit(BlockDeviceMapping, str(mapping.id), flag, CONTEXT)
        return told

    monkeypatch.setattr(adopting, "compared", changed)
    monkeypatch.setattr(adopting, "reader_of", lambda *_: SimpleNamespace(unread=()))
    monkeypatch.setattr(one_host, "read", lambda *_: facts)
    monkeypatch.setattr(adopting.Adopting, "_on", lambda *_: {world.server_id})
    passing = adopting.Adopting("", world.store, Observe(), NOW.timestamp)
    [told] = passing.hand_back(HOST, "not yet", CONTEXT).servers
    assert (told.state, told.server_id) == ("stays", world.server_id)
    assert "changed" in told.why[0].lower()
    assert world.instance.origin is None


def _built(sight: ServerSeen) -> ServerSeen:
    """As Nova shows it while it builds the server, and Cinder does not tell of its volumes."""
    assert sight.server is not None
    mappings = tuple(replace(each, device=None) for each in sight.server.mappings or ())
    server = replace(sight.server, task_state="spawning", root_device=None, mappings=mappings)
    return replace(sight, server=server, shared=frozenset())


def test_what_was_seen_while_nova_built_the_server_is_adopted_as_it_is_now() -> None:
    """Else the root of a server that runs could be detached, or a shared disk plugged as no
    shared one.
    """
    rooted = next(each for each in SCENARIOS if each.name == "reimage").begin()
    world = adopted(rooted, earlier=_built)
    [root] = [each for each in world.mappings() if each.boot_index == 0]
    with pytest.raises(errors.RootDeviceError):
        world.detach(str(root.volume_id))
    shared = World(multiattach=True, encrypted=False)
    shared.done(shared.attach())
    [mapping] = adopted(shared, earlier=_built).mappings()
    assert mapping.multiattach


#: What a host shows of a guest, and what of it may not be decided for another host.
PLUGGED: dict[str, tuple[str, list[str]]] = {
    "a bridge": ("<domain><devices><interface type='bridge'/></devices></domain>", []),
    "a vhost-user": ("<domain/>", ["devices/interface"]),
    "a part of the card": ("<domain/>", ["devices/hostdev"]),
}
_MOVES = [each for each in _THEIRS if re.search("live-migrate|resize|shelve", each.name)]


@pytest.mark.parametrize("name", PLUGGED)
@pytest.mark.parametrize("scenario", _MOVES, ids=lambda each: each.name)
def test_a_guest_with_a_port_of_neutron_stays_on_its_host(scenario: Scenario, name: str) -> None:
    """The port would stay bound there, and the guest be without its network."""
    own, world = scenario.begin(), adopted(scenario.begin())
    definition, dropped = PLUGGED[name]
    for each in (own, world):
        unit = Unit(each.store)
        what = {"definition": definition, "dropped": dropped}
        unit.get(Instance, each.server_id).record(Instance.DefinitionChanged, **what)
        unit.save(CONTEXT)
    with pytest.raises(errors.BoundPortsError, match=HOST):
        scenario.ask(world)
    scenario.ask(own)  # its network is its operator's


def test_a_guest_with_a_port_of_neutron_waits_for_its_host_if_that_is_fenced() -> None:
    [scenario] = [each for each in _THEIRS if each.name == "shelve"]
    world = adopted(scenario.begin())
    unit = Unit(world.store)
    definition, dropped = PLUGGED["a bridge"]
    what = {"definition": definition, "dropped": dropped}
    unit.get(Instance, world.server_id).record(Instance.DefinitionChanged, **what)
    unit.save(CONTEXT)
    world.fence(HOST)
    with pytest.raises(errors.BoundPortsError, match=HOST):
        world.act("evacuate", destination=OTHER)


def test_what_nova_swapped_is_known_by_the_volume_that_it_is_now() -> None:
    """The guest that Nova has started since has no disk of the former volume's serial: what is
    asked of that one finds it gone, and the present disk would lose its connection.
    """

    def before_the_swap(sight: ServerSeen) -> ServerSeen:
        assert sight.server is not None
        [mapping] = sight.server.mappings or ()
        former = replace(mapping, volume_id=str(UUID(int=1)), attachment_id=str(UUID(int=2)))
        return replace(sight, server=replace(sight.server, mappings=(former,)))

    world = World()
    world.done(world.attach())
    adopted(world, earlier=before_the_swap)
    [mapping] = world.mappings()
    world.done(world.detach())
    [guest] = SimulatedGuests(world.hosts[HOST], Faults(), HOST).inventory()
    assert guest.volumes == (), "its disk was taken out before its connection"
    assert mapping.serial == world.volumes[0]
