"""Which repairs are accepted: of what is confirmed, by hosts that can be asked, one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from aggregates import errors
from aggregates.finding import Finding
from aggregates.operation import Outcome
from handlers.drift.repairs import HOSTS_ASKED_MAX
from handlers.engine.plan import plan_of
from handlers.requests.guards import Contact
from handlers.requests.repair import RepairDrift
from ledger.log.unit import Unit
from ledger.trial.cinder.model import legacy as cinder_legacy
from ledger.trial.cinder.model.rows import CinderFault
from tests.flows import drifted
from tests.flows.drifted import finding
from tests.flows.drifts import DRIFTS
from tests.world import CONTEXT, HOST, OTHER, World


def _ask(world: World, **more: Any) -> str:
    request = RepairDrift(finding_id=str(finding(world).id), reason="test")
    fleet = replace(world.fleet, **more)
    return world.requests.repair(request, CONTEXT, fleet).operation_id


def test_what_one_look_has_seen_is_not_repaired() -> None:
    world = World()
    drifted.found(world, "volume_status_differs", drifted._volume_row(world, "x"), looks=1)
    with pytest.raises(errors.RepairError, match="suspected"):
        _ask(world)


def test_what_is_ignored_is_not_repaired() -> None:
    world = drifted.volume_detaching()
    unit = Unit(world.store)
    unit.get(Finding, finding(world).id).record(Finding.DriftIgnored, reason="known")
    unit.save(CONTEXT)
    with pytest.raises(errors.RepairError, match="ignored"):
        _ask(world)


def test_a_guest_that_several_hosts_have_is_somebodys_to_remove() -> None:
    world = drifted.guest_of_deleted(OTHER)
    with pytest.raises(errors.RepairError, match=rf"several hosts \({HOST}, {OTHER}\): remove all"):
        _ask(world)


def test_one_repair_at_a_time() -> None:
    world = drifted.volume_detaching()
    operation_id = drifted.repair(world)
    with pytest.raises(errors.RepairError, match=operation_id):
        _ask(world)


def test_a_finding_that_there_is_not_is_not_found() -> None:
    world = World()
    request = RepairDrift(finding_id=str(UUID(int=1)), reason="test")
    with pytest.raises(errors.NoFindingError):
        world.requests.repair(request, CONTEXT, world.fleet)


@pytest.mark.parametrize("name", ["repair-lost", "repair-attachment", "repair-connection"])
def test_a_host_that_cannot_be_asked_is_no_evidence(name: str) -> None:
    """Neither silence nor a fence: what it has is not known (decision 0059)."""
    silent = lambda host: Contact(alive=host != HOST, since="yesterday")  # noqa: E731
    with pytest.raises(errors.HostUnavailableError, match=rf"{HOST} .* since yesterday;"):
        _ask(DRIFTS[name].world(), contact=silent)
    world = DRIFTS[name].world()
    world.fence(HOST)
    with pytest.raises(errors.HostUnavailableError):
        _ask(world)


def test_a_host_that_the_ledger_has_never_seen_is_no_evidence() -> None:
    world = drifted.attachment_unknown()
    with pytest.raises(errors.RepairError, match="compute-9"):
        _ask(world, had=lambda _server: ["compute-9"])


def test_a_host_that_is_fenced_meanwhile_stops_the_repair() -> None:
    world = drifted.attachment_lost()
    operation_id = drifted.repair(world)
    world.fence(HOST)
    operation = world.run(operation_id)
    assert operation.outcome is Outcome.FAILED
    assert (operation.first_error or {})["code"] == "host_fenced"
    assert finding(world).repairing is None


def test_what_the_old_calls_attached_is_converted_before_it_is_repaired() -> None:
    world = World(legacy=True)
    world.done(world.attach())
    drifted.found(world, "disk_missing", drifted.disk_row(world, None))
    with pytest.raises(errors.RepairError, match="old calls: convert it first"):
        _ask(world)


def test_a_server_that_is_worked_on_is_not_repaired() -> None:
    world = drifted.attachment_lost()
    busy = world.act("stop")
    with pytest.raises(errors.ClaimedError, match=busy):
        _ask(world)


def test_a_class_that_nothing_mends_says_what_to_do_by_hand() -> None:
    world = World()
    row = replace(drifted._volume_row(world, "x"), mappings=1, cinder=None)
    drifted.found(world, "volume_gone", row)
    with pytest.raises(errors.RepairError, match="import the volume"):
        _ask(world)


def test_a_dry_run_changes_nothing_and_shows_the_plan() -> None:
    world = drifted.attachment_lost()
    stored = len(world.store.log)
    request = RepairDrift(finding_id=str(finding(world).id), reason="test")
    operation, shown = world.requests.propose(request, CONTEXT, world.fleet)
    assert operation.started is not None
    assert operation.started.flow == "replace_attachment"
    assert shown.differs == finding(world).differs
    assert len(world.store.log) == stored
    assert finding(world).repairing is None


def test_a_connector_whose_host_cinder_does_not_name_has_every_host_asked() -> None:
    """Cinder's lists name the host of what is attached only (decision 0088)."""
    world = drifted.attachment_unknown_beside(complete=False)
    assert finding(world).differs["cinder"]["host"] is None
    plan = plan_of(world.operation(_ask(world, had=lambda _server: [])))
    assert {lane.host for lane in plan.lanes} == {HOST, OTHER}


def test_a_host_that_is_fenced_need_not_be_asked_by_the_way() -> None:
    world = drifted.attachment_unknown_beside(complete=False)
    world.fence(OTHER)
    plan = plan_of(world.operation(_ask(world, had=lambda _server: [])))
    assert {lane.host for lane in plan.lanes} == {HOST}


def test_more_hosts_than_can_be_asked_at_once_are_no_evidence() -> None:
    world = drifted.attachment_unknown_beside(complete=False)
    with pytest.raises(errors.RepairError, match="does not say whose"):
        _ask(world, unfenced=lambda: [f"compute-{n}" for n in range(HOSTS_ASKED_MAX + 1)])


def test_a_repair_that_can_never_work_is_refused_with_the_command_that_does() -> None:
    world = World()
    world.done(world.attach())
    drifted.found(world, "volume_status_differs", drifted._volume_row(world, "available"))
    stored = len(world.store.log)
    with pytest.raises(errors.RepairError, match=f"--state in-use {world.volumes[0]}"):
        _ask(world)
    assert len(world.store.log) == stored


def test_what_cinder_refuses_to_show_by_itself_is_repaired_by_what_its_list_says() -> None:
    """os-attach by hand, of a volume that is a file: 400 to its GET (`shown_by`)."""
    world = World(driver="nfs", volumes=2)
    world.done(world.attach(world.volumes[0]))
    volume = world.cinder.volume(world.volumes[1])
    told = {"instance_uuid": world.server_id, "mountpoint": "/dev/vdz", "host_name": OTHER}
    cinder_legacy.attach(world.cinder, volume, told)
    [row] = world.cinder.attachments_of(volume.id)
    with pytest.raises(CinderFault, match="malformed or otherwise"):
        world.cinder.shown_attachment(row.id)
    drifted._unknown("attachment_unknown", OTHER)(world, row.id)
    assert world.run(_ask(world)).outcome is Outcome.COMPLETED
    assert world.cinder.attachments_of(volume.id) == []
    assert volume.status == "available"
