"""An operation for people: its steps with where it stands, what is left, what may be done.

Pure.  Works on the answers of `GET /v1/operations` and `/v1/operations/{id}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from cliff.columns import FormattableColumn

from aggregates.operation import SERVER
from handlers.engine.verbs import VERBS
from ledger.cli.base import clock
from ledger.cli.errors import ExitCode
from ledger.cli.table import NamedId, age, span
from ledger.words.acts import BY_NAME
from ledger.words.consequences import ActFacts, consequences, stands
from ledger.words.sentences import error_text, left_text

GIB = 2**30

Operation = dict[str, Any]
Step = dict[str, Any]

NOTHING = ActFacts()


def exit_code(operation: Operation) -> ExitCode:
    """How an operation that nobody waits for any more has ended."""
    if operation["state"] == "parked":
        return ExitCode.PARKED
    if operation["state"] == "running":
        return ExitCode.TIMED_OUT
    return ExitCode.OK if operation["outcome"] == "completed" else ExitCode.OPERATION_FAILED


def is_over(operation: Operation) -> bool:
    """Whether waiting on has no use: it ended, or it is an operator's turn."""
    return str(operation["state"]) != "running"


def standing(operation: Operation) -> str:
    """State, outcome and direction in a word or two."""
    if operation["state"] == "running" and operation["unwinding"]:
        return "unwinding"
    return str(operation["outcome"] or operation["state"])


def name_of(step: Step) -> str:
    return f"undo of {step['step']}" if step["undo"] else str(step["step"])


def is_done(step: Step) -> bool:
    return step["status"] in {"done", "skipped"}


def current(operation: Operation) -> Step | None:
    """The step it is at: the first that is not done, in the direction it goes."""
    if operation["state"] == "finished" or "steps" not in operation:
        return operation.get("at")  # a list tells no more steps
    back = [step for step in operation["steps"] if step["undo"]]
    waiting = (step for step in back or operation["steps"] if not is_done(step))
    return next(waiting, None)


def progress(operation: Operation) -> str:
    """One line: where it is and, if something is wrong, what."""
    step = current(operation)
    text = f"{operation['flow']}: {standing(operation)}"
    if step is None:
        return text
    text += ", ".join(["", f"step {name_of(step)}", *copied(operation)])
    if step["error"]:
        text += f", {step['attempts']} attempts: {error_text(step['error'])}"
    return text


def ended(operation: Operation) -> Iterator[str]:
    """A line for each step that is done, in the order of the plan."""
    several = len({step["lane"] for step in operation["steps"]} - {SERVER}) > 1
    for step in operation["steps"]:
        if is_done(step):
            lane = f" of lane {step['lane']}" if several and step["lane"] != SERVER else ""
            took = f", {step['took_ms']} ms" if step["took_ms"] is not None else ""
            yield f"  {name_of(step)}{lane} on {step['place']}: {step['status']}{took}"


def copied(operation: Operation) -> Iterator[str]:
    """How far what takes long has come: a migration's memory, the copies of a swap."""
    for known in operation["progress"]:
        if known["total_bytes"]:
            share = known["done_bytes"] / known["total_bytes"]
            yield f"{share:.0%} of {known['total_bytes'] / GIB:.1f} GiB"


def drawing(operation: Operation) -> Iterator[str]:
    """A line per step: what is done, where it is, what went wrong."""
    at = current(operation)
    several = len({step["lane"] for step in operation["steps"]}) > 1
    heading = ""
    for step in operation["steps"]:
        now = f"on {step['place']}" + (f", {_subject(step)}" if several else "")
        if now != heading:
            yield now
            heading = now
        mark = "->" if step is at else "  "
        yield f" {mark} {name_of(step):<19} {_known(step)}".rstrip()


def _subject(step: Step) -> str:
    """What the step works on, and with which of its two attachments in a move or swap."""
    if step["lane"] == SERVER:
        return "the server"
    new = ", new attachment" if step.get("side") == "new" else ""
    return f"lane {step['lane']}: {step['volume_id'] or 'volume to be made'}{new}"


def _known(step: Step) -> str:
    words = [] if step["status"] == "pending" else [step["status"]]
    if step["attempts"] > 1:
        words.append(f"{step['attempts']} attempts")
    if step["status"] == "done" and step["took_ms"] is not None:
        words.append(f"{step['took_ms']} ms")
    if step["status"] == "retrying" and step["retry_at"]:
        words.append(f"again at {clock(step['retry_at'])}")
    if step["error"] and not is_done(step):
        words.append(error_text(step["error"]))
    return ", ".join(words)


def left(operation: Operation) -> Iterator[str]:
    """What a parked operation has not done, and why."""
    for item in operation["left"] or []:
        why = error_text(item["error"]) if item.get("error") else "waits for the step above"
        yield f"{left_text(item)}: {why}"


def doing(operation: Operation, now: datetime, *, brief: bool = False) -> str:
    """What a running operation waits for, since when, and in which attempt; else "".

    `brief`: for a cell of a list, without the call and the place.
    """
    step = current(operation)
    if operation["state"] != "running" or step is None:
        return ""
    if step["retry_at"]:
        why = f": {error_text(step['error'])}" if step["error"] else ""
        in_s = (datetime.fromisoformat(step["retry_at"]) - now).total_seconds()
        return f"{name_of(step)} is tried again in {span(in_s)}{why}"
    spec = VERBS.get(step["verb"])
    party, call = (spec.to, spec.call) if spec else ("ledger", step["verb"])
    at = "" if step["place"] == "ledger" else f" on {step['place']}"
    since = operation.get("updated_at") or operation["started_at"]
    waited = age(datetime.fromisoformat(since), now)
    if brief:
        again = [f"attempt {step['attempts'] + 1}"] if step["attempts"] else []
        return ", ".join([f"{name_of(step)}: waiting for {party}", waited, *again])
    words = [f"{name_of(step)}{at}: waiting for {party}", call, waited]
    far = copied(operation) if "progress" in operation else ()
    return ", ".join([*words, f"attempt {step['attempts'] + 1}", *far])


def next_commands(operation: Operation, known: ActFacts = NOTHING) -> Iterator[str]:
    """The acts that the service would take now, ready to be copied, and what they would do."""
    first = (operation["left"] or [{"step": "STEP", "lane": 0}])[0]
    step = first["step"] + (f" --lane {first['lane']}" if first["lane"] else "")
    for act in operation["acts"]:
        if act in BY_NAME:
            which = [operation["operation_id"], *([step] if act == "skip" else [])]
            yield BY_NAME[act].typed(" ".join(which))
            yield from (f"    {line}" for line in consequences(operation, act, known))


class Why(FormattableColumn[str | None]):
    """Why it is parked or has failed; for people also what a running one does."""

    def __init__(self, operation: Operation, now: datetime) -> None:
        super().__init__(operation["why"])
        self._doing = doing(operation, now, brief=True)

    def human_readable(self) -> str:
        return self._doing or self._value or ""


class Drawing(FormattableColumn[list[Step]]):
    """The steps: drawn for people, as they are for machines."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation["steps"])
        self._operation = operation

    def human_readable(self) -> str:
        return "\n".join(drawing(self._operation))


class Lines(FormattableColumn[Any]):
    """Lines for people, the rows behind them for machines."""

    def __init__(self, rows: Any, lines: Iterable[str]) -> None:
        super().__init__(rows)
        self._lines = list(lines)

    def human_readable(self) -> str:
        return "\n".join(self._lines)


def _standing_since(operation: Operation, now: datetime) -> dict[str, Any]:
    match operation["state"]:
        case "running":
            return {"doing": doing(operation, now)}
        case "parked":
            return {"parked since": operation.get("updated_at")}
    return {}


def fields(operation: Operation, known: ActFacts, now: datetime) -> dict[str, Any]:
    """One operation, from the answer that has its steps."""
    at = current(operation)
    shown: dict[str, Any] = {
        "id": operation["operation_id"],
        "flow": operation["flow"],
        "state": operation["state"],
        "outcome": operation["outcome"],
        **_standing_since(operation, now),
        "unwinding": Lines(operation["unwinding"], ["yes"] if operation["unwinding"] else []),
        "step": name_of(at) if at else None,
        "why": operation["why"],
        "server": NamedId(operation["server_id"], operation.get("server_name")),
        "volumes": Lines(operation["volume_ids"], operation["volume_ids"]),
        "host": operation["host"],
        "destination": operation["destination"],
        "who": operation["actor"],
        "request": operation["request_id"],
        "started": operation["started_at"],
        "ended": operation["finished_at"],
        "steps": Drawing(operation),
    }
    if operation["progress"] and operation["state"] == "running":
        shown["progress"] = Lines(operation["progress"], copied(operation))
    if operation["state"] == "parked":
        shown["left"] = Lines(operation["left"] or [], left(operation))
        shown["stands"] = Lines(known.attachments, stands(operation, known))
    if operation["state"] != "finished":
        shown["next"] = Lines(operation["acts"], next_commands(operation, known))
    return shown
