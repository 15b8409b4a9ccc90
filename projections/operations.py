"""Operations with their progress, and the mailbox of commands that follows from them.

The row holds what `aggregates.operation.History` holds, in JSON: `lanes` (with the facts
learnt), `steps` (keyed "<lane>.<step>", undone ones with ".undo"), `active` and `retries`
by lane.  `due_at` says when a dispatcher must look: as long as a run of the ledger's own is
under way or nothing is, now; else when the first retry is due; NULL only while every
unfinished lane waits for a host's report, which itself takes the next decisions.

A run that is to be undone while its host is at it is handed out once more, with `cancel`:
its command moves to the end of the host's mailbox.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from aggregates.operation import (
    LANE_FACTS,
    SERVER,
    Operation,
    OperationState,
    StepStatus,
    learn,
    new_side_steps,
    side_of,
)
from projections.base import Derived, LoggedEvent, Projection, Row, originator

_TOPICS = frozenset(kind.TOPIC for kind in Operation.TRANSITIONS)
#: handlers.plan.LedgerVerb's stored names: what a request that waits waits for.
_BIND, _RESERVE = "mapping_bind", "attachment_reserve"


def _fold(row: Row | None, event: LoggedEvent) -> Row:
    body = event.body
    row = {**(row or _new(event)), **event.stamp}
    match event.topic:
        case Operation.RunStarted.TOPIC:
            _run_started(row, event)
        case Operation.StepSucceeded.TOPIC:
            _succeeded(row, body)
        case Operation.StepRetried.TOPIC:
            _not_done(row, body, StepStatus.RETRYING)
            if body["undo"] or not row["unwinding"]:
                retry = {"at": body["retry_at"], "undo": body["undo"]}
                row["retries"] = {**row["retries"], str(body["lane"]): retry}
        case Operation.StepFailed.TOPIC:
            _not_done(row, body, StepStatus.FAILED)
            row["error"] = row["error"] or body["error"]
        case Operation.Parked.TOPIC:
            row.update(state=OperationState.PARKED, left_steps=body["left"])
        case Operation.OperationFinished.TOPIC:
            row.update(
                state=OperationState.FINISHED,
                outcome=body["outcome"],
                finished_at=event.recorded_at,
                left_steps=None,
                active={},
                retries={},
            )
        case (
            Operation.RetryRequested.TOPIC
            | Operation.StepSkipped.TOPIC
            | Operation.UnwindRequested.TOPIC
        ):
            _operator_acted(row, event)
    row["bound"] = row["bound"] or row["state"] == OperationState.FINISHED or _bound(row)
    row["due_at"] = _due_at(row, event)
    return row


def _new(event: LoggedEvent) -> Row:
    body, actor, plan = event.body, event.body["actor"], event.body["plan"]
    return {
        "operation_id": event.originator_id,
        "flow": body["flow"],
        "server_id": body["server_id"],
        "volume_ids": _volumes(plan["lanes"]),
        "host": plan["hosts"].get("host") or plan["hosts"].get("source"),
        "destination": plan["hosts"].get("destination"),
        "state": OperationState.RUNNING,
        "error": None,
        "plan": plan,
        "lanes": plan["lanes"],
        "steps": {},
        "active": {},
        "retries": {},
        "unwinding": False,
        "bound": False,
        "actor": actor["name"],
        "user_id": actor["user_id"],
        "project_id": actor["project_id"],
        "request_id": body["request_id"],
        "started_at": event.recorded_at,
        "started_position": event.position,
    }


def _volumes(lanes: list[Row]) -> list[str]:
    sides = [side for lane in lanes for side in (lane, lane.get("new") or {})]
    return sorted({side["volume_id"] for side in sides if side.get("volume_id")})


def _run_started(row: Row, event: LoggedEvent) -> None:
    body, lane = event.body, str(event.body["lane"])
    run = {name: body[name] for name in ("run", "steps", "undo", "host", "epoch")}
    if body.get("verb"):  # not the step's own: this host answers for a fenced one
        run["verb"] = body["verb"]
    run |= {"position": event.position, "done": 0}
    row["active"] = {**row["active"], lane: run}
    row["retries"] = _without(row["retries"], lane)
    row["unwinding"] = row["unwinding"] or body["undo"]


def _succeeded(row: Row, body: Row) -> None:
    passed = body["undo"] and bool(body["outputs"].get("passed"))
    if passed or (not body["undo"] and body["step"] == row["plan"]["pivot"]):
        row["unwinding"] = False
    record = {"status": StepStatus.DONE, "took_ms": body["took_ms"], "error": None}
    _record(row, {**body, "undo": body["undo"] and not passed}, attempts=1, **record)
    _learn(row, body)
    lane = str(body["lane"])
    run = row["active"][lane]
    if passed or body["step"] == run["steps"][-1]:
        row["active"] = _without(row["active"], lane)
    else:
        row["active"] = {**row["active"], lane: {**run, "done": run["done"] + 1}}


def _learn(row: Row, body: Row) -> None:
    if body["lane"] == SERVER or body["outputs"].keys().isdisjoint(LANE_FACTS):
        return
    lanes = [dict(lane) for lane in row["lanes"]]
    learn(lanes[body["lane"]], body["outputs"], new=body["step"] in new_side_steps(row["plan"]))
    row["lanes"] = lanes
    row["volume_ids"] = sorted({*row["volume_ids"], *_volumes(lanes)})


def _not_done(row: Row, body: Row, status: StepStatus) -> None:
    _record(
        row,
        body,
        attempts=1,
        status=status,
        error=body["error"],
        retry_at=body.get("retry_at"),
    )
    lane = str(body["lane"])
    row["active"] = _without(row["active"], lane)
    row["retries"] = _without(row["retries"], lane)
    if status is StepStatus.FAILED and not body["undo"] and not _after_pivot(row, body["step"]):
        _turn_around(row)


def _operator_acted(row: Row, event: LoggedEvent) -> None:
    row.update(state=OperationState.RUNNING, left_steps=None)
    if event.topic == Operation.UnwindRequested.TOPIC:
        _turn_around(row)
        row["active"] = {
            lane: run if run["undo"] else {**run, "cancel": True, "position": event.position}
            for lane, run in row["active"].items()
        }
        return
    if event.topic == Operation.StepSkipped.TOPIC:
        _record(row, event.body, attempts=0, status=StepStatus.SKIPPED, error=None)
    row["steps"] = {
        name: {**step, "status": StepStatus.PENDING, "attempts": 0}
        if step["status"] == StepStatus.FAILED and name.endswith(".undo") == row["unwinding"]
        else step
        for name, step in row["steps"].items()
    }


def _record(row: Row, body: Row, *, attempts: int, **changes: Any) -> None:
    name = f"{body['lane']}.{body['step']}" + (".undo" if body["undo"] else "")
    step = row["steps"].get(name, {"attempts": 0, "took_ms": None})
    changed = {**step, "retry_at": None, **changes, "attempts": step["attempts"] + attempts}
    row["steps"] = {**row["steps"], name: changed}


def _turn_around(row: Row) -> None:
    """From now on things are undone: what was to be tried again, forward, no longer is."""
    row["unwinding"] = True
    row["retries"] = {lane: retry for lane, retry in row["retries"].items() if retry["undo"]}


def _after_pivot(row: Row, step: str) -> bool:
    names = [s["name"] for stage in row["plan"]["stages"] for s in stage["steps"]]
    pivot = row["plan"]["pivot"]
    return pivot is not None and names.index(step) > names.index(pivot)


def _bound(row: Row) -> bool:
    """Whether every mapping it makes exists; where it makes none, every reservation."""
    steps = [step for stage in row["plan"]["stages"] for step in stage["steps"]]
    wanted = _BIND if any(step["do"] == _BIND for step in steps) else _RESERVE
    names = [step["name"] for step in steps if step["do"] == wanted]
    done = {StepStatus.DONE, StepStatus.SKIPPED}
    return all(
        row["steps"].get(f"{lane}.{name}", {}).get("status") in done
        for lane in range(len(row["lanes"]))
        for name in names
    )


def _due_at(row: Row, event: LoggedEvent) -> datetime | None:
    if row["state"] != OperationState.RUNNING:
        return None
    runs, retries = row["active"].values(), row["retries"].values()
    own = any(run["host"] is None for run in runs)
    if own or not (runs or retries):
        return event.recorded_at
    if retries:
        return datetime.fromtimestamp(min(retry["at"] for retry in retries), UTC)
    return None


def _without(mapping: Row, name: str) -> Row:
    return {key: value for key, value in mapping.items() if key != name}


def _commands(row: Row) -> list[Row]:
    """The mailbox: one command for each run that a host owes results of."""
    new = new_side_steps(row["plan"])
    return [
        {
            "operation_id": row["operation_id"],
            "run": run["run"],
            "host": run["host"],
            "position": run["position"],
            "done_steps": run["done"],
            "command": {
                "operation_id": row["operation_id"],
                "run": run["run"],
                "epoch": run["epoch"],
                "request_id": row["request_id"],
                "flow": row["flow"],
                "cancel": run.get("cancel", False),
                "steps": _todo(row["plan"], run),
                **_subject(row, int(lane), new=run["steps"][0] in new),
            },
        }
        for lane, run in row["active"].items()
        if run["host"] is not None
    ]


def _subject(row: Row, lane: int, *, new: bool) -> Row:
    """What the command is about: a lane, or the whole server."""
    if lane != SERVER:
        return {"lane": side_of(row["lanes"][lane], new=new)}
    lanes = [side_of(each, new=new) for each in row["lanes"]]
    return {"guest": {**row["plan"]["guest"], "lanes": lanes}}


def _todo(plan: Row, run: Row) -> list[Row]:
    verbs = {
        step["name"]: step["undo"] if run["undo"] else step["do"]
        for stage in plan["stages"]
        for step in stage["steps"]
    }
    own = run.get("verb")
    return [{"name": name, "verb": own or verbs[name]} for name in run["steps"][run["done"] :]]


OPERATIONS = Projection(
    table="operations",
    key="operation_id",
    topics=_TOPICS,
    key_of=originator,
    fold=_fold,
    derived=(Derived("mailbox", _commands),),
)
