"""What an act on an operation would do, in a line, before somebody chooses it.

What an act leaves behind is the service's to say (`dry_run`); which steps come next is in the
operation as it is shown.  Pure: the command line and the console ask, each in its own way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Operation = dict[str, Any]

#: Recorded nowhere, for a dry run changes nothing.
DRY_RUN_REASON = "to see what it would do"
#: The acts that may leave something behind.
_LEAVING = ("skip", "give_up")


@dataclass(frozen=True)
class ActFacts:
    """What is asked beside the operation: only of a parked one, and only as far as one may.

    `attachments`: None: that is not known.  `leaves`: by act what may stay behind, as texts;
    `refused`: why an act would be refused.
    """

    attachments: list[dict[str, Any]] | None = None
    leaves: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def dry_runs(operation: Operation) -> Iterator[tuple[str, dict[str, Any]]]:
    """The acts that may leave something behind, each with the body of a dry run of it."""
    for act in operation["acts"]:
        if act in _LEAVING and operation["left"]:
            yield act, {act: {"reason": DRY_RUN_REASON, **_step(operation, act)}}


def _step(operation: Operation, act: str) -> dict[str, Any]:
    first = operation["left"][0]
    return {"lane": first["lane"], "step": first["step"]} if act == "skip" else {}


def will(operation: Operation, act: str) -> str:
    """What the act does to the steps."""
    left = _left(operation) or ["the steps that wait"]
    first, rest = left[0], ", ".join(left[1:])
    then = f", then {rest}" if rest else ""
    match act:
        case "retry":
            return f"does {first} again{then}"
        case "skip":
            return f"takes {first} as done without doing it{then}"
        case "unwind":
            done = [
                s["step"] for s in operation["steps"] if s["status"] == "done" and not s["undo"]
            ]
            return f"undoes what was done: {', '.join(reversed(done)) or 'nothing'}"
        case "give_up":
            return f"ends the operation; never done: {', '.join(left)}"
    return ""


def second_look(finding: dict[str, Any]) -> dict[str, str]:
    """At what a look sees a suspected finding again, which confirms it; {}: none has to.

    Of a server several hosts may tell: only a look at it asks them all.
    """
    if finding.get("state") != "suspected":
        return {}
    if finding["subject"] == "server":
        return {"server": finding["server_id"]}
    at = {"host": finding["host"], "volume": finding["volume_id"]}
    return dict([(kind, which) for kind, which in at.items() if which][:1])


def consequences(operation: Operation, act: str, known: ActFacts) -> Iterator[str]:
    """A line on what the act does, one on what it leaves."""
    if act in known.refused:
        yield f"refused now: {known.refused[act]}"
        return
    yield will(operation, act)
    if act in known.leaves:
        yield f"leaves behind: {'; '.join(known.leaves[act]) or 'nothing'}"


def stands(operation: Operation, known: ActFacts) -> Iterator[str]:
    """Where each volume of a parked operation is attached, with ids."""
    if known.attachments is None:
        yield "not known: the service does not say where its volumes are attached"
        return
    for volume_id in operation["volume_ids"]:
        of_volume = [each for each in known.attachments if each["volume_id"] == volume_id]
        for each in of_volume:
            host = f" on {each['host']}" if each["host"] else ""
            yield f"volume {volume_id}: attachment {each['attachment_id']} {each['state']}{host}"
        if not of_volume:
            yield f"volume {volume_id}: no attachment to this server is open"


def _left(operation: Operation) -> list[str]:
    """The steps that are not done, the one it is parked at first, in the direction it goes."""
    todo = [
        step
        for step in operation["steps"]
        if step["status"] not in {"done", "skipped"} and step["undo"] == operation["unwinding"]
    ]
    return list(dict.fromkeys(map(_name, [*(operation["left"] or [])[:1], *todo])))


def _name(item: dict[str, Any]) -> str:
    undo = "undo of " if item.get("undo") else ""
    lane = f" (lane {item['lane']})" if item["lane"] > 0 else ""
    return f"{undo}{item['step']}{lane}"
