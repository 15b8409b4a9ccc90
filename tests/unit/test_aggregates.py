"""State machines and invariants of the aggregates, walked through their own tables."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from eventsourcing.persistence import StoredEvent
from hypothesis import given
from hypothesis import strategies as st

from aggregates import errors
from aggregates.attachment import Attachment, AttachmentState
from aggregates.base import Aggregate, Event
from aggregates.finding import Finding
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.look import Look
from aggregates.mapping import BlockDeviceMapping, MappingState
from aggregates.operation import Operation, OperationState
from aggregates.person import Person
from aggregates.remnant import Remnant
from aggregates.server import SeenDisks
from aggregates.volume import Volume, VolumeClaim
from handlers.requests.accept import device_target
from host_agent.shared.contract.lane import Lane
from ledger.log.mapper import JSONBody, LedgerMapper
from projections.base import upcast

KINDS: list[type[Aggregate]] = [
    Attachment,
    BlockDeviceMapping,
    Finding,
    Host,
    Instance,
    Look,
    Operation,
    Person,
    Remnant,
    Volume,
]
MACHINES = [kind for kind in KINDS if kind.TRANSITIONS]


def event_classes(kind: type[Aggregate]) -> list[type[Event]]:
    return [c for c in vars(kind).values() if isinstance(c, type) and issubclass(c, Event)]


@pytest.mark.parametrize("kind", KINDS)
def test_instances_of_a_class_share_the_names_of_their_attributes(kind: type[Aggregate]) -> None:
    """CPython lets them up to 29.  One more makes each dict of the cache five times as large."""
    assert len(vars(kind(uuid4()))) <= 29


@pytest.mark.parametrize("kind", MACHINES)
def test_an_event_that_has_no_place_in_a_state_is_refused(kind: type[Aggregate]) -> None:
    states = {None} | {after for _, after in kind.TRANSITIONS.values()}
    for event, (before, _) in kind.TRANSITIONS.items():
        for state in states - before:
            aggregate = kind(uuid4())
            aggregate.state = state
            with pytest.raises(errors.IllegalTransitionError, match=event.__name__):
                aggregate.record(event)
            assert aggregate.collect_events() == []


@pytest.mark.parametrize("kind", MACHINES)
def test_every_state_can_be_reached(kind: type[Aggregate]) -> None:
    states = {after for _, after in kind.TRANSITIONS.values()}
    reached: set[Any] = {None}
    for _ in range(len(states) + 1):
        reached |= {after for before, after in kind.TRANSITIONS.values() if before & reached}
    assert states <= reached


def test_stored_names_and_fields_are_what_they_were() -> None:
    """Events are for ever: renaming one, or a field of it, needs an upcast, not an edit.

    What is new gets its line in the list; what is there stays as it is.
    """
    bases = [
        base for base in Aggregate.__subclasses__() if base.__module__.startswith("aggregates")
    ]
    ours = {kind for base in bases for kind in base.__subclasses__() or [base]}
    assert ours == set(KINDS)
    stored = tomllib.loads(Path(__file__).with_name("stored_events.toml").read_text())
    own = {field.name for field in dataclasses.fields(Event)}
    assert stored == {
        f"{event.TOPIC}, version {event.class_version}": {
            field.name: field.type for field in dataclasses.fields(event) if field.name not in own
        }
        for kind in KINDS
        for event in event_classes(kind)
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_with_a_default_is_read_from_an_event_that_lacks_it(kind: type[Aggregate]) -> None:
    """As one that was stored before its class had the field: by aggregates and projections."""
    mapper = LedgerMapper(JSONBody())
    for event in event_classes(kind):
        own = dataclasses.fields(event)[len(dataclasses.fields(Event)) :]
        missing = dataclasses.MISSING
        required = {
            each.name: "x"
            for each in own
            if each.default is missing and each.default_factory is missing
        }
        facts: dict[str, Any] = {"originator_id": uuid4(), "originator_version": 1, **required}
        expected = event(**facts)
        stored = StoredEvent(facts["originator_id"], 1, event.TOPIC, orjson.dumps(required))
        read = mapper.to_domain_event(stored)
        assert read == expected
        body = {each.name: getattr(expected, each.name) for each in own}
        assert {name: getattr(read, name) for name in body} == body
        assert upcast(event.TOPIC, dict(required)) == body
        for name, value in upcast(event.TOPIC, dict(required)).items():
            shared = isinstance(value, (dict, list)) and value is getattr(read, name)
            assert not shared, "each event has a container of its own"


@pytest.mark.parametrize("kind", KINDS)
def test_events_are_named_by_their_class_and_hold_what_json_gives_back(
    kind: type[Aggregate],
) -> None:
    for event in event_classes(kind):
        assert f"{kind.__name__}.{event.__name__}" == event.TOPIC
        for field in dataclasses.fields(event):
            assert field.type in STORABLE, f"{event.TOPIC}.{field.name}: {field.type}"


STORABLE = {
    "UUID",
    "About",
    "int",
    "float",
    "float | None",
    "bool",
    "str",
    "str | None",
    "int | None",
    "list[str]",
    "list[str] | None",
    "dict[str, Any]",
    "dict[str, str]",
    "dict[str, str] | None",
    "dict[str, int]",
    "dict[str, Any] | None",
    "list[dict[str, Any]]",
}


@pytest.mark.parametrize("state", [AttachmentState.CONNECTED, AttachmentState.ATTACHED])
def test_an_attached_attachment_is_not_deleted_without_proof(state: AttachmentState) -> None:
    attachment = Attachment(uuid4())
    attachment.state = state
    with pytest.raises(errors.IllegalTransitionError):
        attachment.record(Attachment.Deleted)


def test_an_exclusive_claim_stands_alone() -> None:
    instance = Instance(uuid4())
    instance.claim("a", exclusive=False)
    instance.claim("b", exclusive=False)
    with pytest.raises(errors.ClaimedError, match="a"):
        instance.claim("c", exclusive=True)
    instance.release("a")
    instance.release("b")
    instance.claim("c", exclusive=True)
    with pytest.raises(errors.ClaimedError, match="c"):
        instance.claim("d", exclusive=False)


@given(st.lists(st.integers(0, 40), max_size=60))
def test_a_device_name_is_given_away_once(choices: list[int]) -> None:
    instance = Instance(uuid4())
    for choice in choices:
        held = sorted(instance.devices)
        if held and choice % 3 == 0:
            instance.release_device(held[choice % len(held)])
        else:
            instance.reserve_device(str(uuid4()), str(uuid4()), None)
        names = [device.device_name for device in instance.devices.values()]
        assert len(names) == len(set(names))
        assert "vda" not in names, "the root device's name stays free for a root volume"


def test_fencing_raises_the_epoch_and_old_epochs_are_refused() -> None:
    host = Host(uuid4())
    host.register("h", 1, {})
    host.check_epoch(0)
    host.fence("power lost", "BMC")
    with pytest.raises(errors.StaleEpochError) as raised:
        host.check_epoch(0)
    assert str(raised.value) == str(errors.StaleEpochError(host="h", given=0, current=1))
    host.check_epoch(1)


def test_who_lets_a_host_in_again_says_why_and_that_is_kept() -> None:
    host = Host(uuid4())
    host.register("h", 1, {})
    host.fence("power lost", "BMC")
    host.unfence("repaired")
    [*_, event] = host.collect_events()
    assert vars(event)["reason"] == "repaired"


def test_a_volume_that_was_given_up_is_nobodys_when_it_is_made_after_all() -> None:
    volume = Volume(uuid4())
    volume.made("server", "mark")
    volume.record(Volume.VolumeDeleted, server_id="server", why="given up")
    with pytest.raises(errors.IllegalTransitionError) as raised:
        volume.made("server", "mark")
    assert str(raised.value) == f"Volume.VolumeMade cannot happen to {volume.id} in state deleted."
    made, *_ = volume.collect_events()
    assert (vars(made)["server_id"], vars(made)["mark"]) == ("server", "mark")


def begun(*, undo: bool) -> Operation:
    operation = Operation(uuid4())
    operation.state, operation.lanes = OperationState.RUNNING, [Lane.of_server("s")]
    started = {"run": 1, "lane": 0, "steps": ["a", "b"], "host": "h", "epoch": 0}
    operation.record(Operation.RunStarted, undo=undo, **started)
    return operation


def test_steps_of_a_run_under_way_may_have_had_an_effect() -> None:
    """None is reported yet.  A run that undoes says nothing of what was done."""
    history = begun(undo=False).history
    touched = [history.touched(lane, step) for lane in (0, 1) for step in ("a", "b", "c")]
    assert touched == [True, True, False, False, False, False]
    assert not begun(undo=True).history.touched(0, "a")


@pytest.mark.parametrize("undo", [True, False])
def test_who_wants_an_operation_undone_calls_off_what_goes_forward(undo: bool) -> None:
    operation = begun(undo=undo)
    operation.record(Operation.UnwindRequested, reason="too slow")
    assert operation.history.active[0].cancelled is not undo


def test_seeing_nothing_new_records_nothing() -> None:
    instance, host = Instance(uuid4()), Host(uuid4())
    for _ in range(2):
        host.register("h", 1, {"tag": True})
        instance.observe(
            name="vm",
            host="h",
            power_state="running",
            disks=SeenDisks(("vda",)),
            owner=("p", None),
        )
    assert (host.version, instance.version) == (1, 1)


@pytest.mark.parametrize(
    ("given_path", "target"),
    [
        (None, None),
        ("/dev/vdb", "vdb"),
        ("vdc", "vdc"),
        ("/dev/xvdd", "vdd"),
        ("/dev/sdaa", "sdaa"),
    ],
)
def test_a_device_path_names_a_target(given_path: str | None, target: str | None) -> None:
    assert device_target(given_path) == target


@pytest.mark.parametrize("path", ["", "/dev/", "/dev/nvme0", "/dev/vdb1", "../vdb", "vdb\n", "VDB"])
def test_anything_else_is_no_device_path(path: str) -> None:
    with pytest.raises(errors.DevicePathError):
        device_target(path)


def seen(instance: Instance, host: str, power_state: str = "running") -> bool:
    return instance.observe(name="vm", host=host, power_state=power_state)


def test_a_host_cannot_take_a_guest_by_showing_it() -> None:
    instance = Instance(uuid4())
    seen(instance, "compute-1")
    seen(instance, "compute-2")
    assert instance.host == "compute-1"
    seen(instance, "compute-1", "nostate")
    seen(instance, "compute-2")
    assert instance.host == "compute-2"


def test_what_a_flow_is_changing_is_not_looked_at_until_it_is_done() -> None:
    instance = Instance(uuid4())
    seen(instance, "compute-1")
    instance.claim("op", exclusive=True)
    assert seen(instance, "compute-1"), "it is as it is known"
    assert seen(instance, "compute-2", "shutdown"), "it is not for that host to say"
    assert not seen(instance, "compute-1", "shutdown")
    assert instance.power_state == "running"
    instance.release("op")
    assert seen(instance, "compute-1", "shutdown")
    assert instance.power_state == "shutdown"


def test_a_released_device_name_is_free_at_once() -> None:
    instance = Instance(uuid4())
    instance.observe(name="vm", host="h", power_state="running", disks=SeenDisks(("vda",)))
    assert instance.reserve_device("b", "v", None) == "vdb"
    instance.observe(name="vm", host="h", power_state="running", disks=SeenDisks(("vda", "vdb")))
    instance.release_device("b")
    assert instance.reserve_device("b2", "v2", "vdb") == "vdb"


@pytest.mark.parametrize(
    "state", [AttachmentState.CONNECTING, AttachmentState.CONNECTED, AttachmentState.ATTACHED]
)
def test_an_attachment_is_on_one_host_until_that_has_let_go(state: AttachmentState) -> None:
    attachment = Attachment(uuid4())
    attachment.state, attachment.host = state, "compute-1"
    with pytest.raises(errors.SecondHostError, match="before compute-1 has released the volume"):
        attachment.record(Attachment.ConnectorUpdated, host="compute-2")
    assert attachment.host == "compute-1"
    attachment.record(Attachment.ConnectorUpdated, host="compute-1")
    attachment.record(Attachment.Disconnected)
    attachment.record(Attachment.ConnectorUpdated, host="compute-2")
    assert attachment.host == "compute-2"


@pytest.mark.parametrize(
    ("known", "told", "then"),
    [(None, "rw", "rw"), (None, "ro", "ro"), ("rw", "ro", "ro"), ("ro", "rw", "ro")],
)
def test_an_access_mode_narrows_and_never_widens(known: str | None, told: str, then: str) -> None:
    mapping = BlockDeviceMapping(uuid4())
    mapping.state, mapping.access_mode = MappingState.BOUND, known
    mapping.learn_access_mode(told)
    mapping.learn_access_mode(None)
    assert mapping.access_mode == then


@pytest.mark.parametrize(
    ("other", "excluded"),
    [
        ({"server_id": "t"}, True),
        ({"server_id": "s", "shared": True}, True),
        ({"server_id": "t", "shared": True}, False),
        ({"server_id": "t", "shared": True, "reserves": True}, True),
        ({"server_id": "t", "shared": True, "takes": frozenset({"h"})}, True),
        ({"server_id": "t", "shared": True, "hosts": frozenset({"g"})}, True),
        ({"server_id": "t", "shared": True, "takes": frozenset({"g"})}, False),
    ],
    ids=str,
)
def test_a_claim_of_a_shared_volume_excludes_what_would_take_it_away(
    other: dict[str, Any], excluded: bool
) -> None:
    """Where one side takes what the other side's hosts have (decision 0042)."""
    claim = VolumeClaim(
        server_id="s",
        flow="f",
        shared=True,
        reserves=True,
        takes=frozenset({"g"}),
        hosts=frozenset({"h"}),
    )
    assert claim.excludes(VolumeClaim(flow="f", **other)) is excluded
