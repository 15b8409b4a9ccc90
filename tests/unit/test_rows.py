"""What each projection's row says after each event: written out, for people read these rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from aggregates.attachment import Attachment
from aggregates.base import Actor, EventContext
from aggregates.finding import Finding
from aggregates.host import Host
from aggregates.instance import Instance
from aggregates.look import Look
from aggregates.mapping import BlockDeviceMapping
from aggregates.remnant import Remnant
from aggregates.server import RESET, RESET_MESSAGE, UNSAID
from projections.attachments import ATTACHMENTS
from projections.base import Projection, Row
from projections.findings import FINDINGS
from projections.hosts import HOSTS
from projections.instances import INSTANCES
from projections.looks import LOOKS
from projections.mappings import MAPPINGS
from projections.remnants import REMNANTS
from tests.store.histories import logged
from tests.unit.test_aggregate_facts import CREATED, FOUND, ID, LEFT, MAPPED, PLACED, after

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


def test_the_row_of_a_server_that_was_asked_for() -> None:
    asked = {
        "name": "web",
        "host": "h",
        "definition": DEFINITION,
        "project_id": "p",
        "user_id": "u",
        "tags": ["a"],
    }
    shown = {"name": "web", "host": "h", "power_state": "running", "devices": ["vda"]}
    fault = {"claimant": "op", "message": "m"}
    claim = {"claimant": "op", "exclusive": True, "flow": "resize"}
    rows = changes(
        INSTANCES,
        Instance,
        (Instance.Defined, asked),
        (Instance.InstanceObserved, {**shown, "volumes": ["v"]}),
        (Instance.Claimed, claim),
        (Instance.Faulted, fault),
        (Instance.StateReset, {"state": "error"}),
        (Instance.Placed, {**PLACED, "host": "i", "power_state": "nostate"}),
        (Instance.FaultCleared, {"claimant": "op"}),
        (Instance.ClaimReleased, {"claimant": "op"}),
        (Instance.Resized, {"source": "h", "source_definition": "<was/>"}),
        (Instance.ResizeSettled, {}),
        (Instance.Locked, {"by": "owner", "reason": "why"}),
        (Instance.Unlocked, {}),
        (Instance.Described, {"changed": {"name": "db", "tags": None, "hostname": "x"}}),
        (Instance.DefinitionChanged, {"definition": DEFINITION.replace("512", "256")}),
        (Instance.Offloaded, {}),
        (Instance.Deleted, {}),
    )
    assert rows == [
        {
            "server_id": str(ID),
            "project_id": "p",
            "user_id": "u",
            "name": "web",
            "host": "h",
            "definition": DEFINITION,
            "vcpus": 2,
            "memory_mb": 512,
            **UNSAID,
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
            "deleted": False,
            "created_at": at(1),
        },
        {
            "power_state": "running",
            "base_vm_state": "active",
            "vm_state": "active",
            "devices": ["vda"],
            "volumes": ["v"],
        },
        {"claims": {"op": {"exclusive": True, "flow": "resize"}}},
        {"faults": {"op": "m"}, "vm_state": "error"},
        {"faults": {"op": "m", RESET: RESET_MESSAGE}},
        {"faults": {"op": "m"}, "host": "i", "power_state": "nostate"},
        {"faults": {}, "vm_state": "active"},
        {"claims": {}},
        {"resize_source": "h", "vm_state": "resized"},
        {"resize_source": None, "vm_state": "active"},
        {"locked_by": "owner", "locked_reason": "why"},
        {"locked_by": None, "locked_reason": None},
        {"name": "db", "tags": [], "hostname": "x"},
        {"definition": DEFINITION.replace("512", "256"), "memory_mb": 256},
        {
            "host": None,
            "devices": [],
            "volumes": [],
            "power_state": "shutdown",
            "base_vm_state": "stopped",
            "vm_state": "shelved_offloaded",
        },
        {"deleted": True, "vm_state": "deleted"},
    ]


def test_a_server_that_a_host_showed_first_says_so_in_its_row() -> None:
    shown = {"name": "g", "host": "h", "power_state": "paused", "devices": []}
    [row] = told(
        INSTANCES,
        Instance,
        (Instance.InstanceRegistered, {**shown, "project_id": None, "user_id": None}),
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
        "leftovers": None,
        "disabled": False,
        "disabled_reason": None,
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


def test_the_row_of_a_look() -> None:
    ended = {"outcome": "completed", "compared": {"server": 3}, "found": {"c": 1}}
    more = {"unknown": {"h": "w"}, "braked": {"c": 2}, "trouble": "t", "examples": {"c": ["k"]}}
    begun = {"scope": {"host": "h"}, "why": "asked", "believe": ["c"], "reason": "r"}
    assert changes(
        LOOKS,
        Look,
        (Look.LookBegun, begun),
        (Look.LookStopped, {"reason": "later"}),
        (Look.LookResumed, {"reason": "now"}),
        (Look.LookEnded, {**ended, **more}),
    ) == [
        {
            "look_id": str(ID),
            **begun,
            "kind": "host",
            "state": "under_way",
            "began_at": at(1),
            "began_position": 1,
            **dict.fromkeys(ended | more),
            "ended_at": None,
        },
        {"state": "stopped"},
        {"state": "under_way"},
        {"state": "ended", "ended_at": at(4), **ended, **more},
    ]
    whole = next(told(LOOKS, Look, (Look.LookBegun, {**begun, "scope": {}})))
    assert whole is not None
    assert whole["kind"] == "all"


def test_the_row_of_a_finding() -> None:
    again = {"look_id": "m", "at_position": 9}
    changed = {**again, "differs": {"host": {}}, "boot_id": "next", "epoch": 6}
    repair = {"repair": "r", "by_operation": "o", "reason": "why"}
    first = {k: v for k, v in FOUND.items() if k != "at_position"}
    unset = dict.fromkeys(("over_at", "over_position", "over_how", "repairing", "repaired_by"))
    not_ignored = {"ignored_until": None, "ignored_reason": None}
    assert changes(
        FINDINGS,
        Finding,
        (Finding.DriftFound, FOUND),
        (Finding.DriftConfirmed, again),
        (Finding.DriftIgnored, {"reason": "known", "until": at(0).timestamp()}),
        (Finding.DriftIgnored, {"reason": "known", "until": None}),
        (Finding.DriftHeeded, {"reason": "over"}),
        (Finding.DriftChanged, changed),
        (Finding.DriftConfirmed, again),
        (Finding.RepairBegun, repair),
        (Finding.RepairFailed, {"by_operation": "o", "why": "w"}),
        (Finding.RepairBegun, repair),
        (Finding.DriftRepaired, {"by_operation": "o"}),
        (Finding.DriftFound, FOUND),
        (Finding.DriftGone, again),
    ) == [
        {
            **first,
            **unset,
            **not_ignored,
            "finding_id": str(ID),
            "state": "suspected",
            "times": 1,
            "first_position": 1,
            "found_at": at(1),
            "found_position": 1,
            "seen_at": at(1),
            "seen_position": 1,
            "confirmed_at": None,
        },
        {"state": "confirmed", "confirmed_at": at(2), "look_id": "m"},
        {"state": "ignored", "ignored_until": at(0), "ignored_reason": "known"},
        {"ignored_until": None},
        {"state": "suspected", "confirmed_at": None, "ignored_reason": None},
        {
            "differs": {"host": {}},
            "boot_id": "next",
            "epoch": 6,
            "seen_at": at(6),
            "seen_position": 6,
        },
        {"state": "confirmed", "confirmed_at": at(7)},
        {"repairing": "o"},
        {"repairing": None},
        {"repairing": "o"},
        {
            "state": "over",
            "over_at": at(11),
            "over_position": 11,
            "over_how": "repaired",
            "repairing": None,
            "repaired_by": "o",
        },
        {
            **{name: first[name] for name in ("differs", "boot_id", "epoch", "look_id")},
            **{name: None for name in unset if name != "repairing"},
            "state": "suspected",
            "times": 2,
            "found_at": at(12),
            "found_position": 12,
            "seen_at": at(12),
            "seen_position": 12,
            "confirmed_at": None,
        },
        {
            "state": "over",
            "over_at": at(13),
            "over_position": 13,
            "over_how": "gone",
            "look_id": "m",
        },
    ]


def test_the_row_of_a_remnant() -> None:
    kept = {name: value for name, value in LEFT.items() if name != "what"}
    assert changes(
        REMNANTS,
        Remnant,
        (Remnant.RemnantLeft, LEFT),
        (Remnant.RemnantAcknowledged, {"reason": "it is gone"}),
    ) == [
        {
            **kept,
            "kind": "disk",
            "remnant_id": str(ID),
            "left_position": 1,
            "left_at": at(1),
            "state": "open",
            "acknowledged_at": None,
            "acknowledged_reason": None,
        },
        {"state": "acknowledged", "acknowledged_at": at(2), "acknowledged_reason": "it is gone"},
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
        (MAPPING.DeviceUnplugged, {}),
        (MAPPING.RootDetached, {"volume_id": "v", "attachment_id": "c"}),
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
            "kept": None,
            "created_at": at(1),
            "created_position": 1,
        },
        {"state": "plugged", "device_name": "sdb", "bus": "scsi"},
        {"device_name": "sdc"},
        {"access_mode": "rw"},
        {"delete_on_termination": False},
        {"attachment_id": "c", "kept": "a", "legacy": False},
        {"state": "unplugged"},
        {"state": "vacant", "volume_id": None, "attachment_id": None, "serial": None},
        {
            "state": "bound",
            "volume_id": "w",
            "attachment_id": "b",
            "kept": None,
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
        (A.VolumeRenamed, {"volume_id": "w"}),
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
