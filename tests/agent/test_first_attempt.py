"""At a step's first attempt nothing is looked for that only an earlier one can have left (0098)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from host_agent.shared.contract.lane import SEEN_S, Lane, VolumeSeen
from host_agent.shared.contract.messages import ErrorKind, Occurred, Verb
from host_agent.shared.contract.ports import PortError
from tests.agent.bench import ATTACH, DETACH, Bench, Reports, command, running_executor


def asked(bench: Bench) -> list[str]:
    return [call.partition(".")[2] for call in bench.calls if "cinder." in call]


def own_attachment(bench: Bench) -> Lane:
    """A volume that the server has by another host's attachment, as in a move."""
    lane = bench.attached()
    return replace(lane, attachment_id=None, known=(lane.attachment_id or "",))


@pytest.mark.parametrize("first", [True, False])
def test_an_attachment_that_was_just_made_is_given_its_connector_at_once(
    bench: Bench, first: bool
) -> None:
    bench.run(bench.lane(), Verb.ATTACHMENT_UPDATE, context=bench.context(first=first))
    look = [] if first else ["attachment"]
    assert asked(bench) == [*look, "attachment_update"]


@pytest.mark.parametrize("first", [True, False])
def test_what_is_in_the_way_of_a_new_attachment_is_looked_for_when_cinder_refuses(
    bench: Bench, first: bool
) -> None:
    lane = own_attachment(bench)
    made = bench.run(lane, Verb.ATTACHMENT_CREATE, context=bench.context(first=first))
    look = [] if first else ["attachments"]
    assert asked(bench) == [*look, "attachment_create"]
    bench.calls.clear()
    again = bench.run(lane, Verb.ATTACHMENT_CREATE, context=bench.context(first=first))
    assert made["attachment_id"] not in bench.model.attachments, "Cinder refused beside it"
    assert again["attachment_id"] in bench.model.attachments
    refused = ["attachment_create"] if first else []
    rest = ["attachments", "attachment_delete", "attachment_create"]
    assert asked(bench) == [*refused, *rest]


@pytest.mark.parametrize("first", [True, False])
def test_a_volume_that_is_let_go_is_held_before_it_is_looked_at(bench: Bench, first: bool) -> None:
    lane = bench.attached()
    bench.run(lane, *DETACH[:2])
    bench.calls.clear()
    bench.run(lane, Verb.ATTACHMENT_DELETE, context=bench.context(first=first))
    look = [] if first else ["volume"]
    assert asked(bench) == [*look, "begin_detaching", "volume", "attachment_delete"]


def test_a_volume_that_turns_out_to_migrate_is_held_no_longer(bench: Bench) -> None:
    """Of one that migrates begin_detaching says yes; whoever tries again looks first."""
    lane = bench.attached()
    bench.run(lane, *DETACH[:2])
    volume = bench.model.volume(lane.volume_id)
    volume.migration_status = "migrating"
    for first in (True, False):
        bench.calls.clear()
        with pytest.raises(PortError) as raised:
            bench.run(lane, Verb.ATTACHMENT_DELETE, context=bench.context(first=first))
        assert (raised.value.kind, raised.value.code) == (ErrorKind.RETRYABLE, "volume_busy")
        assert volume.status == "in-use"
        held = ["begin_detaching", "volume", "roll_detaching"]
        assert asked(bench) == (held if first else ["volume"])


def test_what_is_complete_is_seen_afterwards_with_its_connection(bench: Bench) -> None:
    lane = bench.lane()
    bench.run(lane, *ATTACH[:4])
    bench.calls.clear()
    bench.run(lane, Verb.ATTACHMENT_COMPLETE, context=bench.context(first=True))
    assert asked(bench) == ["attachment_complete", "attachment"]
    bench.model.attachments[lane.attachment_id or ""].connection_info = {}
    with pytest.raises(PortError) as raised:
        bench.run(lane, Verb.ATTACHMENT_COMPLETE, context=bench.context(first=True))
    assert raised.value.code == "not_connected"


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_run_is_the_first_if_no_agent_had_it_before(
    bench: Bench, reports: Reports, tmp_path: Path, first: bool, resumed: bool
) -> None:
    with running_executor(bench.world(), tmp_path, reports) as executor:
        executor.submit(command(bench.lane(), first=first), resumed=resumed)
        reports.wait(len(ATTACH))
    looked = asked(bench).index("attachment_update") > asked(bench).index("volume") + 1
    assert looked is (resumed or not first)


# --- what Cinder showed when it was accepted ------------------------------------------


def seen(bench: Bench, lane: Lane, at: float, *, service_uuid: str | None = "service") -> Lane:
    volume = bench.model.volume(lane.volume_id)
    shown = VolumeSeen(
        id=volume.id,
        at=at,
        status="available",
        size_gb=volume.size,
        multiattach=False,
        shared_targets=True,
        service_uuid=service_uuid,
    )
    return replace(lane, seen=(shown,))


AT, AHEAD_S = 1_000_000.0, 7200.0  # and by how much the host's clock is ahead


@pytest.mark.parametrize(
    ("age_s", "service_uuid", "asks"),
    [
        (SEEN_S, "service", False),
        (SEEN_S + 1, "service", True),
        (-SEEN_S - 1, "service", True),  # a clock was set back
        (1.0, None, True),  # its lock has no name yet
        (None, "service", True),  # nobody knows how old it is
    ],
)
def test_a_volume_that_was_seen_lately_is_not_asked_for(
    bench: Bench,
    reports: Reports,
    tmp_path: Path,
    age_s: float | None,
    service_uuid: str | None,
    asks: bool,
) -> None:
    lane = seen(bench, bench.lane(), AT, service_uuid=service_uuid)
    now = age_s and Occurred(at=AT + age_s + AHEAD_S, offset_s=AHEAD_S, error_s=0.1)
    world = bench.world()
    with running_executor(world, tmp_path, reports, occurred=lambda: now or None) as executor:
        executor.submit(command(lane))
        assert [result.error for result in reports.wait(len(ATTACH))] == [None] * len(ATTACH)
    assert ("volume" in asked(bench)) is asks
