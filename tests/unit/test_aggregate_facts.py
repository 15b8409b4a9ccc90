"""What each event makes true of its aggregate, and whom it concerns."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from aggregates.attachment import Attachment
from aggregates.base import About, Aggregate, Event
from aggregates.finding import Finding
from aggregates.instance import Instance, VmState
from aggregates.look import Look
from aggregates.mapping import BlockDeviceMapping
from aggregates.operation import Operation
from aggregates.remnant import Remnant
from aggregates.server import Device, SeenDisks, next_name, serial_for
from aggregates.volume import Volume

ID = UUID(int=7)
WHOSE = {"server_id": "s", "volume_id": "v", "attachment_id": "a", "host": "h"}
STEP = {"run": 1, "lane": 0, "step": "new one", "undo": False, "outputs": {}, "took_ms": 1}
RUN = {"run": 1, "steps": ["one", "new one"], "undo": False, "host": "h", "epoch": 3}
CREATED = {"volume_id": "v", "server_id": "s", "legacy": True, "access_mode": "ro"}
MAPPED = {
    "server_id": "s",
    "volume_id": "v",
    "attachment_id": "a",
    "device_name": "vdb",
    "tag": "t",
    "boot_index": 0,
    "delete_on_termination": True,
    "multiattach": True,
    "legacy": True,
    "serial": "serial",
    "access_mode": "ro",
}
PLACED = {"host": "h", "power_state": "running", "epoch": 2}
FOUND = {
    "drift_class": "c",
    "severity": "low",
    "key": "k",
    "subject": "x",
    "differs": {"ledger": {}},
    "look_id": "l",
    **WHOSE,
    "at_position": 5,
    "boot_id": "boot",
    "epoch": 4,
}
SEEN_ON = {"h": {"boot_id": "boot", "epoch": 4, "age_s": 0.0}}
LEFT = {
    "what": "disk",
    "act": "skip",
    "reason": "r",
    "from_operation": "o",
    "step": "x",
    **WHOSE,
}


def lane(**over: Any) -> dict[str, Any]:
    side = {"volume_id": "new v", "attachment_id": "new a", "host": "there"}
    named = {"server_id": "s", "volume_id": "v", "bdm_id": "b", "attachment_id": "a"}
    device = {"device_name": "vdb", "tag": None, "boot_index": None, "delete_on_termination": False}
    return {**named, **device, "multiattach": False, "new": side, **over}


def started(*lanes: dict[str, Any]) -> tuple[type[Event], dict[str, Any]]:
    stages = [
        {"side": "current", "steps": [{"name": "one"}]},
        {"side": "new", "steps": [{"name": "new one"}]},
    ]
    facts = {"flow": "f", "server_id": "s", "request_id": "r", "actor": {}}
    return Operation.OperationStarted, {**facts, "plan": {"lanes": list(lanes), "stages": stages}}


def after(kind: type[Aggregate], *events: tuple[type[Event], dict[str, Any]]) -> Any:
    aggregate = kind(ID)
    for event, facts in events:
        aggregate.record(event, **facts)
    return aggregate


A, M, V = Attachment, BlockDeviceMapping, Volume
#: An aggregate's class and events, and whom it concerns after them.
CONCERNS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((A, (A.AttachmentCreated, CREATED)), {"volume_id": "v", "server_id": "s"}),
    (
        (A, (A.AttachmentCreated, CREATED), (A.ConnectorUpdated, {"host": "h"})),
        {"volume_id": "v", "server_id": "s", "host": "h"},
    ),
    (
        (A, (A.Disowned, {"volume_id": "v", "server_id": "s", "why": "w"})),
        {"volume_id": "v", "server_id": "s"},
    ),
    (
        (
            A,
            (A.AttachmentCreated, CREATED),
            (A.VolumeRenamed, {"volume_id": "kept", "former_volume_id": "v"}),
        ),
        {"volume_id": "kept", "server_id": "s"},
    ),
    (
        (M, (M.MappingCreated, MAPPED)),
        {"volume_id": "v", "server_id": "s", "attachment_id": "a"},
    ),
    (
        (
            M,
            (M.MappingCreated, MAPPED),
            (M.RootDetached, WHOSE_ROOT := {"volume_id": "v", "attachment_id": "a"}),
        ),
        {**WHOSE_ROOT, "server_id": "s"},
    ),
    ((Instance, (Instance.Placed, PLACED)), {"host": "h"}),
    ((V, (V.VolumeMade, {"server_id": "s", "mark": "m"})), {"server_id": "s"}),
    ((V, (V.VolumeDeleted, {"server_id": "s", "why": "w"})), {"server_id": "s"}),
    ((V, (V.VolumeDeletionRefused, {"server_id": "s", "why": "w"})), {"server_id": "s"}),
    ((V, (V.Held, {"server_id": "s", "attachment_id": "a"})), {}),
    ((Finding, (Finding.DriftFound, FOUND)), WHOSE),
    ((Remnant, (Remnant.RemnantLeft, LEFT)), WHOSE),
    ((Remnant,), {}),
    ((Finding,), {}),
    ((Look,), {}),
    ((Look, (Look.LookBegun, {"scope": {"host": "h"}, "why": "asked"})), {"host": "h"}),
    ((Look, (Look.LookBegun, {"scope": {"server": "s"}, "why": "x"})), {"server_id": "s"}),
    ((Look, (Look.LookBegun, {"scope": {"volume": "v"}, "why": "x"})), {"volume_id": "v"}),
    ((Look, (Look.LookBegun, {"scope": {}, "why": "schedule"})), {}),
    (
        (Operation, started(lane())),
        {"server_id": "s", "volume_id": "v", "attachment_id": "a"},
    ),
    ((Operation, started(lane(), lane())), {"server_id": "s"}),
    (
        (
            Operation,
            started(lane(), lane(volume_id="w")),
            (Operation.RunStarted, {**RUN, "lane": 1}),
        ),
        {"server_id": "s", "volume_id": "w", "attachment_id": "a", "host": "h"},
    ),
    (
        (Operation, started(lane()), (Operation.RunStarted, {**RUN, "lane": -1})),
        {"server_id": "s", "host": "h"},
    ),
    (
        (
            Operation,
            started(lane()),
            (Operation.RunStarted, {**RUN, "lane": 0}),
            (Operation.StepSucceeded, {**STEP, "step": "one", "host": "h"}),
        ),
        {"server_id": "s", "volume_id": "v", "attachment_id": "a", "host": "h"},
    ),
    (
        (
            Operation,
            started(lane()),
            (Operation.RunStarted, {**RUN, "lane": 0}),
            (Operation.StepSucceeded, {**STEP, "host": "there"}),
        ),
        {"server_id": "s", "volume_id": "new v", "attachment_id": "new a", "host": "there"},
    ),
]


@pytest.mark.parametrize("number", range(len(CONCERNS)))
def test_an_event_concerns_whom_it_is_about_and_nobody_else(number: int) -> None:
    events, whom = CONCERNS[number]
    aggregate = after(*events)
    assert aggregate.id == ID
    own = {Attachment: "attachment_id", Volume: "volume_id", Instance: "server_id"}
    named = {own[type(aggregate)]: str(ID)} if type(aggregate) in own else {}
    assert aggregate.about() == About(**named, **whom)


def facts(aggregate: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(aggregate, name) for name in names}


def test_a_mapping_is_what_its_events_say() -> None:
    mapping = after(M, (M.MappingCreated, MAPPED))
    assert facts(mapping, *MAPPED) == MAPPED
    more = {"serial": None, "access_mode": "rw", "tag": None, "multiattach": False}
    root = {**{name: MAPPED[name] for name in ("delete_on_termination", "legacy")}, **more}
    mapping.detach_root()
    assert facts(mapping, "volume_id", "attachment_id", "serial") == dict.fromkeys(
        ("volume_id", "attachment_id", "serial")
    )
    mapping.record(M.RootAttached, volume_id="w", attachment_id="b", **root)
    assert facts(mapping, "volume_id", "attachment_id", "serial", "tag", "access_mode") == {
        "volume_id": "w",
        "attachment_id": "b",
        "serial": "w",
        "tag": "t",
        "access_mode": "rw",
    }
    mapping.record(M.AttachmentSwitched, volume_id="x", attachment_id="c", kept="b", legacy=False)
    assert facts(mapping, "volume_id", "attachment_id", "kept", "legacy", "serial") == {
        "volume_id": "x",
        "attachment_id": "c",
        "kept": "b",
        "legacy": False,
        "serial": "w",
    }
    mapping.record(M.DevicePlugged, device_name="vdz")
    assert mapping.device_name == "vdz"


def test_a_root_that_goes_is_named_and_so_is_its_attachment() -> None:
    mapping = after(M, (M.MappingCreated, MAPPED))
    mapping.collect_events()
    mapping.detach_root()
    [event] = mapping.collect_events()
    assert (event.volume_id, event.attachment_id) == ("v", "a")
    assert event.about == About(volume_id="v", attachment_id="a", server_id="s")


def test_a_flag_that_is_so_already_records_nothing() -> None:
    mapping = after(M, (M.MappingCreated, MAPPED))
    mapping.set_delete_on_termination(True)
    assert mapping.version == 1
    mapping.set_delete_on_termination(False)
    assert (mapping.version, mapping.delete_on_termination) == (2, False)


def test_an_attachment_is_what_its_events_say() -> None:
    attachment = after(A, (A.AttachmentCreated, CREATED))
    assert facts(attachment, *CREATED) == CREATED
    assert (attachment.disowned, attachment.may_be_connected) == (False, False)
    attachment.record(A.ConnectorUpdated, host="h")
    assert (attachment.access_mode, attachment.may_be_connected) == ("ro", True)
    attachment.record(A.ConnectorUpdated, host="h", access_mode="rw")
    assert attachment.access_mode == "rw"
    assert after(A, (A.Disowned, {"volume_id": "v", "server_id": "s", "why": "w"})).disowned


def test_a_finding_is_what_was_seen_last() -> None:
    finding = after(Finding, (Finding.DriftFound, {**FOUND, "seen_on": SEEN_ON}))
    assert facts(finding, "differs", "seen_on", "seen_at", "repairing", "failed") == {
        "differs": {"ledger": {}},
        "seen_on": SEEN_ON,
        "seen_at": 5,
        "repairing": None,
        "failed": False,
    }
    assert finding.ignored_until is None
    seen = {"look_id": "m", "at_position": 9, "seen_on": {"h": {"boot_id": "next"}}}
    finding.record(Finding.DriftConfirmed, look_id="l", at_position=6)
    mends = {"repair": "r", "by_operation": "o", "reason": "why"}
    finding.record(Finding.RepairBegun, **mends)
    assert (finding.repairing, finding.failed) == ("o", False)
    finding.record(Finding.RepairFailed, by_operation="o", why="w")
    assert (finding.repairing, finding.failed) == (None, True)
    finding.record(Finding.DriftChanged, differs={"host": {}}, **seen)
    assert facts(finding, "differs", "seen_on", "seen_at", "failed") == {
        "differs": {"host": {}},
        "seen_on": {"h": {"boot_id": "next"}},
        "seen_at": 9,
        "failed": False,
    }
    finding.record(Finding.DriftIgnored, reason="known", until=12.5)
    assert finding.ignored_until == 12.5


def test_a_server_is_where_and_as_its_events_say() -> None:
    server = after(Instance, (Instance.Placed, PLACED))
    assert facts(server, "host", "power_state", "epoch", "managed", "offloaded", "vm_state") == {
        "host": "h",
        "power_state": "running",
        "epoch": 2,
        "managed": True,
        "offloaded": False,
        "vm_state": VmState.ACTIVE,
    }
    server.record(Instance.GuestLeft, host="there")
    server.record(Instance.Resized, source="h", source_definition="<was/>")
    assert facts(server, "left_on", "resize_source", "source_definition", "vm_state") == {
        "left_on": {"there"},
        "resize_source": "h",
        "source_definition": "<was/>",
        "vm_state": VmState.RESIZED,
    }
    server.place("there", "running", 1)
    assert (server.left_on, server.epoch) == (set(), 1)
    server.record(Instance.ResizeSettled)
    assert (server.resize_source, server.source_definition) == (None, None)
    server.record(Instance.Offloaded)
    assert facts(server, "host", "offloaded", "seen", "power_state", "vm_state") == {
        "host": None,
        "offloaded": True,
        "seen": SeenDisks(),
        "power_state": "shutdown",
        "vm_state": VmState.SHELVED_OFFLOADED,
    }
    server.record(Instance.Deleted)
    server.record(Instance.Faulted, claimant="op", message="m")
    assert server.vm_state is VmState.DELETED


@pytest.mark.parametrize(
    ("was", "shows", "epoch"),
    [("running", "running", 1), ("running", "paused", 1), ("shutdown", "running", 2)],
)
def test_a_guest_is_of_the_epoch_in_which_it_came_or_began_to_run(
    was: str, shows: str, epoch: int
) -> None:
    server = after(Instance, (Instance.Placed, {**PLACED, "power_state": was, "epoch": 1}))
    server.observe(name="n", host="h", power_state=shows, epoch=2)
    assert server.epoch == epoch


def test_a_servers_volumes_and_disks_are_told_apart() -> None:
    server = after(Instance, (Instance.Placed, PLACED))
    server.observe(name="n", host="h", power_state="running", disks=SeenDisks(("vda", "vdb")))
    assert server.reserve_device("b", "v", None) == "vdc"
    assert server.devices == {"b": Device("b", "v", "vdc", "v")}
    server.observe(
        name="n", host="h", power_state="running", disks=SeenDisks(("vda", "vdb", "vdc"))
    )
    assert server.local_disks == ("vda", "vdb")
    server.set_device_volume("b", "w")
    assert server.devices == {"b": Device("b", "w", "vdc", "v")}, "a swap keeps the disk"
    server.set_device_volume("b", None)
    assert server.vacant_root == "vdc"
    assert server.devices == {"b": Device("b", None, "vdc", None)}
    server.set_device_volume("b", "x")
    assert server.devices == {"b": Device("b", "x", "vdc", "x")}
    version = server.version
    server.set_device_volume("b", "x")
    server.set_device_volume("unknown", "x")
    server.release_device("unknown")
    assert server.version == version
    server.release_device("b")
    assert server.devices == {}
    assert server.seen.devices == ("vda", "vdb")


def test_the_next_free_name_is_on_the_bus_of_the_others_and_never_the_roots() -> None:
    assert next_name(set(), ()) == "vdb"
    assert next_name({"vdb", "vdc"}, ["vda"]) == "vdd"
    assert next_name({"sdb"}, ["sda"]) == "sdc"
    assert next_name({f"vd{x}" for x in "abcdefghijklmnopqrstuvwxyz"}, ()) == "vdaa"


def test_what_is_deleted_or_offloaded_is_not_looked_at() -> None:
    for away in (Instance.Deleted, Instance.Offloaded):
        server = after(Instance, (Instance.Placed, PLACED), (away, {}))
        version = server.version
        assert server.observe(name="n", host="h", power_state="paused")
        assert server.version == version


def test_a_root_that_comes_back_keeps_its_own_serial_if_nobody_else_has_it() -> None:
    server = after(Instance, (Instance.Placed, PLACED))
    server.reserve_device("b", "v", "vdb")
    server.record(Instance.DeviceVolumeSet, bdm_id="b", volume_id=None, serial="v")
    server.set_device_volume("b", "v")
    assert server.devices["b"].serial == "v"


def test_the_epoch_of_the_host_that_was_asked_first_is_kept_until_another_is_asked() -> None:
    operation = after(Operation, started(lane()))
    for run, (host, epoch, asked) in enumerate(
        [("h", 3, ("h", 3)), ("h", 4, ("h", 3)), (None, 0, ("h", 3)), ("i", 1, ("i", 1))], 1
    ):
        operation.record(
            Operation.RunStarted, **{**RUN, "run": run, "lane": 0, "host": host, "epoch": epoch}
        )
        error = {"kind": "retryable", "code": "x", "message": "m"}
        facts = {"run": run, "lane": 0, "step": "one", "undo": False, "error": error}
        operation.record(Operation.StepRetried, **facts, retry_at=1.0, host=host)
        assert operation.history.of_step(0, "one", undo=False).asked == asked


def test_a_serial_that_another_disk_has_is_not_given_again() -> None:
    other = Device("other", "w", "vdb", "v")
    assert serial_for("v", "b", [other]) == "b"
    assert serial_for("v", "other", [other]) == "v"


def test_a_guest_that_its_host_shows_is_recorded_with_all_that_it_shows() -> None:
    server = Instance(ID)
    server.observe(
        name="n",
        host="h",
        power_state="paused",
        disks=SeenDisks(("vda",), ("v",)),
        owner=("p", "u"),
        definition=("<d/>", ["x"]),
        epoch=3,
    )
    shown = ("name", "host", "power_state", "seen", "project_id", "user_id", "epoch")
    assert facts(server, *shown, "definition", "dropped", "vm_state") == {
        "name": "n",
        "host": "h",
        "power_state": "paused",
        "seen": SeenDisks(("vda",), ("v",)),
        "project_id": "p",
        "user_id": "u",
        "epoch": 3,
        "definition": "<d/>",
        "dropped": ["x"],
        "vm_state": VmState.PAUSED,
    }


def test_an_aggregate_of_stored_events_is_the_one_that_recorded_them() -> None:
    recorded = after(Instance, (Instance.Placed, PLACED), (Instance.GuestLeft, {"host": "i"}))
    stored = recorded.collect_events()
    assert vars(Instance.evolve(ID, stored)) == vars(recorded)


def test_a_fork_and_its_origin_know_nothing_of_each_other() -> None:
    origin = after(V, (V.Held, {"server_id": "s", "attachment_id": "a"}))
    fork = origin.fork()
    fork.record(V.Released, server_id="s", attachment_id="a")
    assert (origin.holders, fork.holders) == ({"a": "s"}, {})
    assert (origin.version, fork.version) == (1, 2)
    assert len(fork.collect_events()) == 2
    assert not fork.unsaved
    assert origin.unsaved


def test_a_volume_is_held_and_had_by_whom_its_events_say() -> None:
    volume = after(V, (V.Held, {"server_id": "s", "attachment_id": "a"}))
    volume.record(V.Held, server_id="s", attachment_id="0")
    volume.record(V.Held, server_id="t", attachment_id="b")
    assert volume.held_by("s") == ("0", "a")
    assert (volume.had, volume.deleted) == (True, False)
    volume.record(V.VolumeDeleted, server_id="t", why="w")
    assert (volume.deleted, volume.last_server) == (True, "t")
