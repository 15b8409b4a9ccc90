"""Verbs for Cinder's assisted snapshots of file volumes, which a running guest takes and deletes.

Cinder waits for them for a limited time (its remotefs driver: ten minutes, two hours).  So each
verb first checks that Cinder still waits, and merges no snapshot that Cinder has given up.
"""

from __future__ import annotations

import posixpath
from typing import Any

from host_agent.shared.contract.lane import Lane
from host_agent.shared.contract.ports import Merge
from host_agent.verbs.context import RunContext, final, refuse_other_source
from host_agent.verbs.disk import disk_replace, forget_former


def disk_snapshot(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Have the guest write to the file that Cinder has created above the present one."""
    _refuse_unless(ctx, lane, "creating")
    file = _snapshot(lane)["file"]
    sources = ctx.guests.disk(lane.server_id, lane.disk_serial).sources
    if file not in map(posixpath.basename, sources):  # else an earlier run has begun it
        refuse_other_source(ctx, lane.server_id, lane.disk_serial)
    ctx.guests.snapshot(lane.server_id, lane.disk_serial, file)
    return {}


def disk_snapshot_revert(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Have the guest write to the file below again, with all data written since."""
    file = _snapshot(lane)["file"]
    ctx.guests.unsnapshot(lane.server_id, lane.disk_serial, file, ctx.watch)
    return {}


def disk_follow(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Update the guest's definition and the host's record to the file that Cinder now names."""
    disk_replace(ctx, lane)
    forget_former(ctx, lane)
    return {}


def disk_merge(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """Merge a file of the guest's disk into another, so that Cinder can delete it."""
    _refuse_unless(ctx, lane, "deleting")
    ctx.guests.merge(lane.server_id, lane.disk_serial, _merge(lane), ctx.watch)
    return {}


def disk_merge_abort(ctx: RunContext, lane: Lane) -> dict[str, Any]:
    """End the merge; `passed` if it is complete already."""
    kept = ctx.guests.end_merge(lane.server_id, lane.disk_serial, _merge(lane))
    return {} if kept else {"passed": True}


def _refuse_unless(ctx: RunContext, lane: Lane, status: str) -> None:
    seen = ctx.cinder.snapshot(_snapshot(lane)["id"])
    if seen.status != status:
        raise final(
            "snapshot_not_awaited",
            f"Cinder does not wait for snapshot {seen.id} any more: it is {seen.status}.",
        )


def _snapshot(lane: Lane) -> dict[str, Any]:
    if lane.snapshot is None:
        raise final("no_snapshot", f"The command for volume {lane.volume_id} names no snapshot.")
    return lane.snapshot


def _merge(lane: Lane) -> Merge:
    wanted = _snapshot(lane)
    return Merge(file=wanted.get("merge"), into=wanted.get("into"))
