"""What each projection's row says after each event: written out, for people read these rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from aggregates.attachment import Attachment
from aggregates.base import Actor, EventContext
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.mapping import BlockDeviceMapping
from aggregates.server import DEFAULT_DETAILS, RESET, RESET_MESSAGE
from projections.attachments import ATTACHMENTS
from projections.base import Projection, Row
from projections.hosts import HOSTS
from projections.instances import INSTANCES
from projections.mappings import MAPPINGS
from tests.store.histories import logged
from tests.unit.test_aggregate_facts import CREATED, ID, MAPPED, PLACED, after

CONTEXT = EventContext(actor=Actor(name="ada"), request_id="req-1", operation_id=str(UUID(int=9)))
DEFINITION = "<domain><memory unit='MiB'>512</memory><vcpu>2</vcpu></domain>"
MAPPING, A = BlockDeviceMapping, Attachment


def at(position: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=position)


def told(projection: Projection, kind: Any, *events: Any) -> Iterator[Row | None]:
    """The row after each event, from position 1 on."""
    row: Row | None = None
    for position, event in enumerate(after(kind, *events).collect_events(), 1):
        seen = logged(position, event, CONTEXT, at(position))
        assert seen.topic in projection.topics
        row = projection.fold(row, seen)
        assert row is None or projection.key_of(seen) == row[projection.key]
        yield row


def changes(projection: Projection, kind: Any, *events: Any) -> list[Row | None]:
    """What each event changes in the row before it."""
    before: Row = {}
    changed: list[Row | None] = []
    for row in told(projection, kind, *events):
        if row is None:
            return [*changed, None]
        assert (row["position"], row["updated_at"]) == (len(changed) + 1, at(len(changed) + 1))
        stamp = {"position", "updated_at"}
        changed.append({k: row[k] for k in row.keys() - stamp if before.get(k, ...) != row[k]})
        before = row
    return changed


_ASKED = {
    "name": "web",
    "host": "h",
    "definition": DEFINITION,
    "project_id": "p",
    "user_id": "u",
    "tags": ["a"],
}
_SHOWN = {"name": "web", "host": "h", "power_state": "running", "devices": ["vda"]}
_FAULT = {"claimant": "op", "message": "m"}
_CLAIM = {"claimant": "op", "exclusive": True, "flow": "resize"}
_UNASKED = dict.fromkeys(("fingerprint", "global_request_id", "traceparent"))
#: What happens to a server, and what each of it changes in its row.
SERVER: tuple[tuple[Any, Row, Row], ...] = (
    (
        Instance.Defined,
        _ASKED,
        {
            "server_id": str(ID),
            "project_id": "p",
            "user_id": "u",
            "name": "web",
            "host": "h",
            "definition": DEFINITION,
            "vcpus": 2,
            "memory_mb": 512,
            **DEFAULT_DETAILS,
            "tags": ["a"],
            "base_vm_state": "building",
            "vm_state": "building",
            "power_state": "nostate",
            "devices": [],
            "volumes": [],
            "shown_by": None,
            "locked_by": None,
            "locked_reason": None,
            "faults": {},
            "claims": {},
            "resize_source": None,
            "elsewhere": {},
            "origin": None,
            "deleted": False,
            "created_at": at(1),
        },
    ),
    (
        Instance.SeenElsewhere,
        {"host": "i", "power_state": "paused", "volumes": [], "epoch": 1},
        {"elsewhere": {"i": "paused"}},
    ),
    (
        Instance.InstanceObserved,
        {**_SHOWN, "volumes": ["v"], "epoch": 1},
        {
            "power_state": "running",
            "base_vm_state": "active",
            "vm_state": "active",
            "devices": ["vda"],
            "volumes": ["v"],
        },
    ),
    (Instance.Claimed, _CLAIM, {"claims": {"op": {"exclusive": True, "flow": "resize"}}}),
    (Instance.Faulted, _FAULT, {"faults": {"op": "m"}, "vm_state": "error"}),
    (Instance.StateReset, {"state": "error"}, {"faults": {"op": "m", RESET: RESET_MESSAGE}}),
    (
        Instance.Placed,
        {**PLACED, "host": "i", "power_state": "nostate"},
        {"faults": {"op": "m"}, "host": "i", "power_state": "nostate", "elsewhere": {}},
    ),
    (Instance.FaultCleared, {"claimant": "op"}, {"faults": {}, "vm_state": "active"}),
    (Instance.ClaimReleased, {"claimant": "op"}, {"claims": {}}),
    (
        Instance.Resized,
        {"source": "h", "source_definition": "<was/>"},
        {"resize_source": "h", "vm_state": "resized"},
    ),
    (Instance.ResizeSettled, {}, {"resize_source": None, "vm_state": "active"}),
    (
        Instance.Locked,
        {"by": "owner", "reason": "why"},
        {"locked_by": "owner", "locked_reason": "why"},
    ),
    (Instance.Unlocked, {}, {"locked_by": None, "locked_reason": None}),
    (
        Instance.Described,
        {"changed": {"name": "db", "tags": None, "hostname": "x"}},
        {"name": "db", "tags": [], "hostname": "x"},
    ),
    (
        Instance.DefinitionChanged,
        {"definition": DEFINITION.replace("512", "256")},
        {"definition": DEFINITION.replace("512", "256"), "memory_mb": 256},
    ),
    (
        Instance.DeletionAwaited,
        {"operation_id": "last", "request_id": "r", "actor": {}, **_UNASKED},
        {"claims": {"last": {"exclusive": True, "flow": "delete"}}},
    ),
    (
        Instance.Offloaded,
        {},
        {
            "host": None,
            "devices": [],
            "volumes": [],
            "power_state": "shutdown",
            "base_vm_state": "stopped",
            "vm_state": "shelved_offloaded",
        },
    ),
    (Instance.Deleted, {}, {"deleted": True, "vm_state": "deleted"}),
)


def test_the_row_of_a_server_that_was_asked_for() -> None:
    rows = changes(INSTANCES, Instance, *((kind, body) for kind, body, _ in SERVER))
    assert rows == [row for *_, row in SERVER]


def test_a_server_that_a_host_showed_first_says_so_in_its_row() -> None:
    shown = {"name": "g", "host": "h", "power_state": "paused", "devices": [], "volumes": []}
    [row] = told(
        INSTANCES,
        Instance,
        (Instance.InstanceRegistered, {**shown, "epoch": 1, "project_id": None, "user_id": None}),
    )
    assert row is not None
    assert (row["shown_by"], row["volumes"], row["vm_state"]) == ("h", [], "paused")
    assert (row["definition"], row["vcpus"], row["memory_mb"]) == (None, 0, 0)


def test_the_row_of_a_host() -> None:
    host = Host(ID)
    host.register("h", 4, {"tag": True}, {"ip": "1"})
    host.register("h", 5, {"tag": True}, {"ip": "1"})
    host.register("h", 5, {"tag": True}, {"ip": "2"})
    host.disable("rack")
    host.enable()
    host.fence("no power", "BMC")
    host.report_leftovers(["g"], ["a"], all_decided=True)
    host.unfence("repaired")
    host.report_leftovers([], [], all_decided=True)
    row: Row | None = None
    rows = []
    for position, event in enumerate(host.collect_events(), 1):
        row = HOSTS.fold(row, logged(position, event, CONTEXT, at(position)))
        rows.append(row)
    first = {
        "host": "h",
        "service_version": 4,
        "capabilities": {"tag": True},
        "connector": {"ip": "1"},
        "connector_position": 1,
        "registered_at": at(1),
        "epoch": 0,
        "fenced": False,
        "fence_reason": None,
        "fence_evidence": None,
        "suspect": False,
        "unvouched": False,
        "leftovers": None,
        "disabled": False,
        "disabled_reason": None,
        "deleted": False,
    }
    changed: list[Row] = [
        first,
        {"service_version": 5},
        {"connector": {"ip": "2"}, "connector_position": 3},
        {"disabled": True, "disabled_reason": "rack"},
        {"disabled": False, "disabled_reason": None},
        {
            "epoch": 1,
            "fenced": True,
            "suspect": True,
            "fence_reason": "no power",
            "fence_evidence": "BMC",
        },
        {"leftovers": {"guests": ["g"], "attachments": ["a"]}},
        {"fenced": False, "fence_reason": None, "fence_evidence": None},
    ]
    expected: Row = {}
    for position, (change, shown) in enumerate(zip(changed, rows, strict=False), 1):
        expected |= {**change, "position": position, "updated_at": at(position)}
        assert shown == expected
    assert (rows[-1]["suspect"], rows[-1]["leftovers"]) == (False, None)


def test_the_row_of_a_host_after_a_restore() -> None:
    """The fence of before is over; the host is unvouched, also while it is fenced anew."""
    host = Host(ID)
    host.register("h", 4, {}, None)
    host.fence("no power", "BMC")
    host.restore(9, 7, "disk lost")
    host.fence("gone", "sold")
    host.unfence("bought back")
    host.vouch("looked at")
    row, shown = None, []
    for position, event in enumerate(host.collect_events(), 1):
        row = HOSTS.fold(row, logged(position, event, CONTEXT, at(position)))
        names = ("epoch", "fenced", "fence_reason", "suspect", "unvouched")
        shown.append(tuple(row[name] for name in names))
    assert shown == [
        (0, False, None, False, False),
        (1, True, "no power", True, False),
        (9, False, None, False, True),
        (10, True, "gone", False, True),
        (10, False, None, False, True),
        (10, False, None, False, False),
    ]


def test_the_row_of_a_host_that_is_forgotten_and_comes_back() -> None:
    """What an operator said of it stands: its fence, and that it gets no servers."""
    host = Host(ID)
    host.register("h", 4, {}, {"ip": "1"})
    host.disable("rack")
    host.fence("no power", "BMC")
    host.delete("scrapped")
    host.register("h", 5, {}, {"ip": "1"})
    host.delete("scrapped again")
    host.restore(9, 7, "disk lost")
    row, shown = None, []
    for position, event in enumerate(host.collect_events(), 1):
        row = HOSTS.fold(row, logged(position, event, CONTEXT, at(position)))
        names = ("deleted", "registered_at", "epoch", "fenced", "suspect", "disabled_reason")
        shown.append(tuple(row[name] for name in names))
    assert shown[2:] == [
        (False, at(1), 1, True, True, "rack"),
        (True, at(1), 2, True, True, "rack"),
        (False, at(5), 2, True, True, "rack"),
        (True, at(5), 3, True, True, "rack"),
        (False, at(5), 9, False, False, "rack"),
    ]


def test_the_row_of_a_mapping() -> None:
    root = {"volume_id": "w", "attachment_id": "b", "delete_on_termination": False}
    rows = changes(
        MAPPINGS,
        MAPPING,
        (MAPPING.MappingCreated, MAPPED),
        (MAPPING.DevicePlugged, {"device_name": "sdb", "bus": "scsi"}),
        (MAPPING.DevicePlugged, {"device_name": "sdc", "bus": None}),
        (MAPPING.AccessModeLearned, {"access_mode": "rw"}),
        (MAPPING.DeleteOnTerminationSet, {"delete_on_termination": False}),
        (
            MAPPING.AttachmentSwitched,
            {"volume_id": "v", "attachment_id": "c", "kept": "a", "legacy": False},
        ),
        (
            MAPPING.AttachmentSwitched,
            {"volume_id": "v", "attachment_id": "d", "kept": "a", "legacy": True},
        ),
        (MAPPING.DeviceUnplugged, {}),
        (MAPPING.RootDetached, {"volume_id": "v", "attachment_id": "d"}),
        (MAPPING.RootAttached, {**root, "multiattach": False}),
        (MAPPING.DeviceUnplugged, {}),
        (MAPPING.MappingEnded, {}),
    )
    assert rows == [
        {
            **MAPPED,
            "bdm_id": str(ID),
            "state": "bound",
            "bus": None,
            "origin": None,
            "kept": None,
            "created_at": at(1),
            "created_position": 1,
        },
        {"state": "plugged", "device_name": "sdb", "bus": "scsi"},
        {"device_name": "sdc"},
        {"access_mode": "rw"},
        {"delete_on_termination": False},
        {"attachment_id": "c", "kept": "a", "legacy": False},
        {"attachment_id": "d", "legacy": True},
        {"state": "unplugged"},
        {"state": "vacant", "volume_id": None, "attachment_id": None, "serial": None},
        {
            "state": "bound",
            "volume_id": "w",
            "attachment_id": "b",
            "kept": None,
            "legacy": False,
            "serial": "w",
            "multiattach": False,
            "access_mode": None,
        },
        {"state": "unplugged"},
        None,
    ]


def test_the_row_of_an_attachment_and_the_spans_in_which_hosts_had_it() -> None:
    there = {"host": "h", "driver": "iscsi", "target_digest": "d"}
    span = {"host": "h", "from_position": 2, "from_at": at(2).isoformat()}
    open_, over = {"to_position": None, "to_at": None}, {"to_position": 5}
    ended = {**over, "to_at": at(5).isoformat()}
    again = {"host": "h", "from_position": 5, "from_at": at(5).isoformat()}
    let_go = {"to_position": 6, "to_at": at(6).isoformat()}
    rows = changes(
        ATTACHMENTS,
        A,
        (A.AttachmentCreated, CREATED),
        (A.ConnectorUpdated, {**there, "access_mode": "rw"}),
        (A.ConnectorUpdated, {**there, "driver": "rbd"}),
        (A.Connected, {"device_path": "/dev/sdb"}),
        (A.VolumeRenamed, {"volume_id": "w", "former_volume_id": "v"}),
        (A.Disconnected, {"shared": False}),
        (A.Deleted, {}),
    )
    assert rows == [
        {
            **CREATED,
            "adopted": False,
            "attachment_id": str(ID),
            "state": "reserved",
            "operation_id": CONTEXT.operation_id,
            "spans": [],
            "origin": None,
            "created_at": at(1),
            "created_position": 1,
        },
        {**there, "state": "connecting", "access_mode": "rw", "spans": [{**span, **open_}]},
        {"driver": "rbd"},
        {"state": "connected", "device_path": "/dev/sdb"},
        {
            "volume_id": "w",
            "spans": [{"volume_id": "v", **span, **ended}, {**again, **open_}],
        },
        {
            "state": "disconnected",
            "spans": [{"volume_id": "v", **span, **ended}, {**again, **let_go}],
        },
        {"state": "deleted", "ended_at": at(7)},
    ]


def test_an_attachment_that_is_disowned_at_once_has_a_row() -> None:
    disowned = (A.Disowned, {"volume_id": "v", "server_id": "s", "why": "nobody knew it"})
    [row] = told(ATTACHMENTS, A, disowned)
    assert row is not None
    assert (row["state"], row["adopted"], row["legacy"]) == ("deleted", False, False)
