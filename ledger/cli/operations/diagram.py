"""Sequence diagrams of flows, drawn from their tables: as text and as Mermaid.

Pure: a diagram can say nothing that the table and its verbs' rows do not.  `os-brick` and `libvirt`
stand for those of the host that calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from handlers.engine.plan import Flow, Only, Place, Side, Stage, Step
from handlers.engine.verbs import VERBS, AnyVerb

#: All there may be, from left to right; a flow's diagram has those that it needs.
PARTIES = (
    "user",
    "ledger",
    "Cinder",
    *(place.value for place in Place if place is not Place.LEDGER),
    "os-brick",
    "libvirt",
)
#: The distance of the lifelines in the text form.
COLUMN = 12

#: Marks what is done with the attachment, or volume, that the server is to have.
NEW = "(new)"


@dataclass(frozen=True)
class Message:
    """One arrow."""

    source: str
    target: str
    text: str


@dataclass(frozen=True)
class Remark:
    """Something true from here on."""

    text: str


@dataclass(frozen=True)
class Frame:
    """What each volume goes through by itself, beside the others."""

    inside: tuple[Message | Remark, ...]


Item = Message | Remark | Frame


def items(flow: Flow) -> Iterator[Item]:
    """The flow when all goes well, then what is done when it does not."""
    yield Message("user", "ledger", f"{flow.name} request")
    yield from _framed(flow.stages, lambda stage: _stage(flow, stage))
    yield from _trouble(flow)


def _framed(
    stages: Iterable[Stage], drawn: Callable[[Stage], Iterator[Message | Remark]]
) -> Iterator[Item]:
    """Stages of the same lanes that follow one another share a frame."""
    for (once, *_), some in groupby(stages, key=lambda s: (s.once, s.of, s.only)):
        inside = tuple(item for stage in some for item in drawn(stage))
        if once:
            yield from inside
        elif inside:
            yield Frame(inside)


def _stage(flow: Flow, stage: Stage) -> Iterator[Message | Remark]:
    actor = stage.place.value
    if stage.place is not Place.LEDGER:
        names = ", ".join(step.name for step in stage.steps)
        yield Message("ledger", actor, f"command: {names}")
    for step in stage.steps:
        yield _call(stage, step.name, step.do)
        if step.name == flow.pivot:
            yield Remark("pivot: from here on only forward, or park")
    if stage.place is not Place.LEDGER:
        yield Message(actor, "ledger", "report: the results")


def _call(stage: Stage, name: str, verb: AnyVerb) -> Message:
    mark = f" {NEW}" if stage.side is Side.NEW else ""
    return Message(stage.place.value, VERBS[verb].to, f"{name}: {VERBS[verb].call}{mark}")


def _trouble(flow: Flow) -> Iterator[Item]:
    """Undo steps in the order they are done; those after the pivot have none."""
    undone = tuple(_framed(reversed(flow.stages), _undo))
    after = [step.name for _, step in table(flow)]
    after = after[after.index(flow.pivot) + 1 :] if flow.pivot else []
    until = f"up to {flow.pivot} " if after else ""
    if undone:
        yield Remark(f"if a step {until}fails: undo what may have happened, in reverse")
    else:
        yield Remark(f"if a step {until}fails: nothing to undo")
    yield from undone
    parks = ["an undo"] * bool(undone) + ["a step after the pivot"] * bool(after)
    if parks:
        yield Remark(f"if {' or '.join(parks)} fails: park")


def _undo(stage: Stage) -> Iterator[Message]:
    for step in reversed(stage.steps):
        if step.undo is not None:
            yield _call(stage, f"undo {step.name}", step.undo)


def _parties(flow: Flow) -> tuple[str, ...]:
    used = {"user", "ledger"}
    for item in items(flow):
        for each in item.inside if isinstance(item, Frame) else (item,):
            if isinstance(each, Message):
                used |= {each.source, each.target}
    return tuple(party for party in PARTIES if party in used)


# --- text -----------------------------------------------------------------------------


def text(flow: Flow) -> str:
    """Lifelines and arrows in plain characters; what is said stands to the right."""
    parties = _parties(flow)
    lines = ["".join(f"{party:<{COLUMN}}" for party in parties).rstrip()]
    for item in items(flow):
        if isinstance(item, Frame):
            lines.append(f"{_lifelines(parties)}  each volume:")
            lines += [_line(parties, each, indent="  ") for each in item.inside]
        else:
            lines.append(_line(parties, item))
    return "\n".join(lines) + "\n"


def _line(parties: tuple[str, ...], item: Message | Remark, indent: str = "") -> str:
    if isinstance(item, Remark):
        return f"{_lifelines(parties)}  {indent}-- {item.text}"
    return f"{_arrow(parties, item)}  {indent}{item.text}"


def _lifelines(parties: tuple[str, ...]) -> str:
    row = [" "] * (COLUMN * (len(parties) - 1) + 2)
    for number in range(len(parties)):
        row[number * COLUMN + 1] = "|"
    return "".join(row)


def _arrow(parties: tuple[str, ...], message: Message) -> str:
    row = list(_lifelines(parties))
    start = parties.index(message.source) * COLUMN + 1
    end = parties.index(message.target) * COLUMN + 1
    if start == end:
        row[start] = "o"
        return "".join(row)
    low, high = min(start, end), max(start, end)
    row[low + 1 : high] = "-" * (high - low - 1)
    row[end + (-1 if end > start else 1)] = ">" if end > start else "<"
    return "".join(row)


# --- Mermaid --------------------------------------------------------------------------


def mermaid(flow: Flow) -> str:
    """The same for pages that draw (https://mermaid.js.org, sequenceDiagram)."""
    parties = _parties(flow)
    over = f"{_alias(parties[0])},{_alias(parties[-1])}"
    lines = ["sequenceDiagram"]
    lines += [f"    participant {_alias(party)} as {party}" for party in parties]
    for item in items(flow):
        if isinstance(item, Frame):
            lines.append("    loop each volume")
            lines += [f"    {_drawn(each, over)}" for each in item.inside]
            lines.append("    end")
        else:
            lines.append(_drawn(item, over))
    return "\n".join(lines) + "\n"


def _drawn(item: Message | Remark, over: str) -> str:
    if isinstance(item, Remark):
        return f"    Note over {over}: {item.text}"
    report = item.target == "ledger" and item.source not in {"user", "ledger"}
    arrow = "-->>" if report else "->>"
    return f"    {_alias(item.source)}{arrow}{_alias(item.target)}: {item.text}"


def _alias(party: str) -> str:
    return party.replace("-", "")


_ONLY = {
    Only.IMAGED: "volume that gets an image",
    Only.NOT_IN_GUEST: "volume that is no guest's disk",
}


def done_for(stage: Stage) -> str:
    """For each of what the steps of a stage are done."""
    if stage.once:
        return "server"
    if stage.only is not None:
        return _ONLY[stage.only]
    return f"volume of {stage.of}" if stage.of else "volume"


def table(flow: Flow) -> Iterator[tuple[Stage, Step]]:
    """The rows of a flow, in order."""
    for stage in flow.stages:
        for step in stage.steps:
            yield stage, step
