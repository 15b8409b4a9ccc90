"""What Nova calls the state of a server: status, task state, flavor; pure.

A task state is what an operation is doing to the whole server, told by its claim.  One that
is parked does nothing any more: the server is in ERROR, with a fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]

DELETING = "deleting"
TASK_OF_FLOW = {
    "boot": "spawning",
    "live_migrate": "migrating",
    "resize": "resize_migrating",
    "revert_resize": "resize_reverting",
    "evacuate": "rebuilding",
    "rebuild": "rebuilding",
    "reimage": "rebuilding",
    "shelve": "shelving_offloading",
    "unshelve": "unshelving",
    "start": "powering-on",
    "stop": "powering-off",
    "pause": "pausing",
    "unpause": "unpausing",
    "reboot": "rebooting",
    "delete": DELETING,
}

_STATUS = {
    "active": "ACTIVE",
    "paused": "PAUSED",
    "stopped": "SHUTOFF",
    "error": "ERROR",
    "building": "BUILD",
    "resized": "VERIFY_RESIZE",
    "shelved_offloaded": "SHELVED_OFFLOADED",
    "deleted": "DELETED",
}
#: Where Nova's status tells what is under way, and not what was before.
_STATUS_DURING = {
    "migrating": ("MIGRATING", {"active", "paused"}),
    "resize_migrating": ("RESIZE", {"active", "stopped"}),
    "resize_reverting": ("REVERT_RESIZE", {"resized"}),
    "rebuilding": ("REBUILD", {"active", "stopped", "error"}),
    "rebooting": ("REBOOT", {"active"}),
}
#: In these a server tells a progress, which is not known here.
WITH_PROGRESS = {"ACTIVE", "BUILD", "REBUILD", "RESIZE", "VERIFY_RESIZE", "MIGRATING"}
POWER_STATE = {"nostate": 0, "running": 1, "paused": 3, "shutdown": 4, "crashed": 6}

#: The one availability zone there is; Nova's default, which clients ask for.
ZONE = "nova"


def task_state(row: Row) -> str | None:
    """What an operation is doing to the server, if it is one of the whole server; a deletion also
    while it waits for another (decision 0086).
    """
    working = (claim for id_, claim in row["claims"].items() if id_ not in row["faults"])
    tasks = [task for claim in working if (task := TASK_OF_FLOW.get(claim["flow"] or ""))]
    return DELETING if DELETING in tasks else next(iter(tasks), None)


def status(row: Row) -> str:
    return _status_of(row["vm_state"], task_state(row) or "")


def _status_of(vm_state: str, task: str) -> str:
    name, states = _STATUS_DURING.get(task, ("", set()))
    return name if vm_state in states else _STATUS[vm_state]


def states_of(statuses: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The pairs of a vm_state and a task state ("": none) that have one of these statuses."""
    wanted = {status.upper() for status in statuses}
    tasks = ("", *sorted(set(TASK_OF_FLOW.values())))
    return tuple(
        (vm_state, task)
        for vm_state in _STATUS
        for task in tasks
        if _status_of(vm_state, task) in wanted
    )


def zone(row: Row) -> str:
    """The availability zone of a server; what is on no host is in none."""
    return ZONE if row["host"] else ""


def power_state(row: Row) -> int:
    return POWER_STATE.get(row["power_state"], 0)


def flavor(vcpus: int, memory_mb: int, name: str) -> Row:
    """A server's size, as Nova embeds a flavor in a server (2.47)."""
    return {
        "vcpus": vcpus,
        "ram": memory_mb,
        "disk": 0,
        "ephemeral": 0,
        "swap": 0,
        "original_name": name,
        "extra_specs": {},
    }
