"""Sequence diagrams of flows, drawn from their tables: as text and as Mermaid.

Pure: a diagram can say nothing that the table does not.  Who a verb talks to is the
only thing known here besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from handlers.plan import Flow, LedgerVerb, Place, Stage, Step
from host_agent.contract import Verb

#: The parties from left to right, and the distance of their lifelines in the text form.
PARTIES = ("user", "ledger", "Cinder", "agent", "os-brick", "libvirt")
COLUMN = 11

#: The other end of each verb, and what is said there.
CALLS: dict[LedgerVerb | Verb, tuple[str, str]] = {
    LedgerVerb.ATTACHMENT_RESERVE: ("Cinder", "attachment create, no connector"),
    LedgerVerb.ATTACHMENT_DELETE: ("Cinder", "attachment delete"),
    LedgerVerb.MAPPING_BIND: ("ledger", "record the mapping"),
    LedgerVerb.MAPPING_UNBIND: ("ledger", "end the mapping"),
    Verb.ATTACHMENT_UPDATE: ("Cinder", "attachment update with connector"),
    Verb.VOLUME_WAIT_READY: ("Cinder", "volume show until ready"),
    Verb.VOLUME_CONNECT: ("os-brick", "connect volume"),
    Verb.DISK_PLUG: ("libvirt", "attach device, live and persistent"),
    Verb.ATTACHMENT_COMPLETE: ("Cinder", "attachment complete"),
    Verb.DISK_UNPLUG: ("libvirt", "detach device, live and persistent"),
    Verb.VOLUME_DISCONNECT: ("os-brick", "disconnect volume"),
    Verb.ATTACHMENT_DELETE: ("Cinder", "attachment delete"),
}


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


def messages(flow: Flow) -> Iterator[Message | Remark]:
    """The flow when all goes well, then what is done when it does not."""
    yield Message("user", "ledger", f"{flow.name} request")
    for stage in flow.stages:
        yield from _stage(flow, stage)
    yield from _undo(flow)


def _stage(flow: Flow, stage: Stage) -> Iterator[Message | Remark]:
    actor = _actor(stage)
    if stage.place is Place.HOST:
        names = ", ".join(step.name for step in stage.steps)
        yield Message("ledger", "agent", f"command: {names}")
    for step in stage.steps:
        target, text = CALLS[step.do]
        yield Message(actor, target, f"{step.name}: {text}")
        if step.name == flow.pivot:
            yield Remark("pivot: from here on only forward, or park")
    if stage.place is Place.HOST:
        yield Message("agent", "ledger", "a report after each step")


def _undo(flow: Flow) -> Iterator[Message | Remark]:
    """Undo steps in the order they are done; those after the pivot have none."""
    undone = [
        (stage, step)
        for stage in reversed(flow.stages)
        for step in reversed(stage.steps)
        if step.undo is not None
    ]
    if undone:
        until = f"up to {flow.pivot} " if flow.pivot else ""
        yield Remark(f"if a step {until}fails: undo what may have happened, in reverse")
    for stage, step in undone:
        assert step.undo is not None
        target, text = CALLS[step.undo]
        yield Message(_actor(stage), target, f"undo {step.name}: {text}")
    parks = ["an undo"] * bool(undone) + ["a step after the pivot"] * bool(flow.pivot)
    yield Remark(f"if {' or '.join(parks or ['a step'])} fails: park")


def _actor(stage: Stage) -> str:
    return "ledger" if stage.place is Place.LEDGER else "agent"


# --- text -----------------------------------------------------------------------------


def text(flow: Flow) -> str:
    """Lifelines and arrows in plain characters; what is said stands to the right."""
    lines = ["".join(f"{party:<{COLUMN}}" for party in PARTIES).rstrip()]
    for item in messages(flow):
        if isinstance(item, Remark):
            lines.append(f"{_lifelines()}  -- {item.text}")
        else:
            lines.append(f"{_arrow(item)}  {item.text}")
    return "\n".join(lines) + "\n"


def _lifelines() -> str:
    width = COLUMN * (len(PARTIES) - 1) + 2
    row = [" "] * width
    for number in range(len(PARTIES)):
        row[number * COLUMN + 1] = "|"
    return "".join(row)


def _arrow(message: Message) -> str:
    row = list(_lifelines())
    start = PARTIES.index(message.source) * COLUMN + 1
    end = PARTIES.index(message.target) * COLUMN + 1
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
    lines = ["sequenceDiagram"]
    lines += [f"    participant {_alias(party)} as {party}" for party in PARTIES]
    for item in messages(flow):
        if isinstance(item, Remark):
            both = f"{_alias(PARTIES[0])},{_alias(PARTIES[-1])}"
            lines.append(f"    Note over {both}: {item.text}")
        else:
            arrow = "-->>" if item.target == "ledger" and item.source == "agent" else "->>"
            ends = f"{_alias(item.source)}{arrow}{_alias(item.target)}"
            lines.append(f"    {ends}: {item.text}")
    return "\n".join(lines) + "\n"


def _alias(party: str) -> str:
    return party.replace("-", "")


def table(flow: Flow) -> Iterator[tuple[Stage, Step]]:
    """The rows of a flow, in order."""
    for stage in flow.stages:
        for step in stage.steps:
            yield stage, step
