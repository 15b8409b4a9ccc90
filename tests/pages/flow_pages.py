"""The pages of docs/flows: what each flow's file says, its table, and its diagram.

`python -m tests.pages.flow_pages DIRECTORY` (`make docs`) writes them.  Nothing in them is
written by hand, and a test holds that they are current.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType

from handlers import flows
from handlers.engine.plan import Ask, Flow, Place, Side
from handlers.engine.verbs import VERBS, LedgerVerb, VerbSpec
from handlers.flows import FLOWS
from ledger.cli.operations import diagram

INDEX, VERBS_PAGE = "README.md", "verbs.md"

#: Where a step runs, in the order in which the index explains it.
_PLACES = {
    Place.LEDGER: "the service itself",
    Place.HOST: "the host of the server",
    Place.SOURCE: "the host that the server leaves",
    Place.DESTINATION: "the host that the server goes to",
    Place.HOLDER: "the host that holds the attachment",
    Place.ARRIVAL: "the host to which an unfinished live migration may still bring the guest",
}

_INDEX = """\
# Flows

What the ledger does, drawn from the tables it works by; `make docs` writes these pages.

| flows | |
|---|---|
{flows}

## How to read a table

Steps are done from top to bottom. Each volume goes through them by itself, beside the
others; a step for the *server* is done once, when all volumes have come so far.

| where | |
|---|---|
{places}

*Attachment* says which one a step works on, if a volume has two during the flow: the
`current` one is what the server has, or had, the `new` one what it is to have.

Up to the **pivot**, and with it, a failure undoes what may have happened, from the bottom
to the top. After it there is only forward; what cannot go forward parks, and an operator
decides ([the command line](../cli.md)). Undoing a pivot may find that it has happened: then,
too, there is only forward. Without a pivot a flow can be undone to its end.

A host that is fenced, or that does not exist (an offloaded server has none), can neither
hold nor release anything. As far as the fence vouches for it (decision 0038) the ledger does
instead what [the verbs' table](verbs.md) says; where a live migration has ended is told by its
other host; what would put something back on the fenced host is in vain, and left out. A swap's copy
and a conversion that were under way there park: no fence tells what they had done.
"""

_VERBS = f"""\
# Verbs

What steps do: the rows of [handlers/engine/verbs.py](../../handlers/engine/verbs.py), where
`VerbSpec` says what each column means. `make docs` writes this page.

{{table}}

[All flows, and how to read them]({INDEX})
"""
#: Facts of a verb that are so or not.
_FACTS = [each.name for each in fields(VerbSpec) if each.default is False]


def modules() -> Iterator[tuple[ModuleType, list[Flow]]]:
    """The files of flows that have any, each with its flows, in the order of the product."""
    for found in pkgutil.iter_modules(flows.__path__, f"{flows.__name__}."):
        module = import_module(found.name)
        known = {id(value) for value in vars(module).values() if isinstance(value, Flow)}
        if own := [flow for flow in FLOWS.values() if id(flow) in known]:
            yield module, own


def pages() -> dict[str, str]:
    """Every file of the directory, by name."""
    found = sorted(modules(), key=lambda pair: list(FLOWS).index(pair[1][0].name))
    made = {f"{flow.name}.md": _page(module, flow) for module, own in found for flow in own}
    return {INDEX: _index(found), VERBS_PAGE: _verbs(), **made}


def _page(module: ModuleType, flow: Flow) -> str:
    source = f"{module.__name__.replace('.', '/')}.py"
    parts = [
        f"# {flow.name}",
        f"From [{source}](../../{source}):",
        inspect.getdoc(module) or "",
        " ".join(_rules(flow)),
        "\n".join(_table(flow)),
        f"```mermaid\n{diagram.mermaid(flow)}```",
        f"[All flows, and how to read them]({INDEX})",
    ]
    return "\n\n".join(parts) + "\n"


#: Presence beats absence (decision 0088): who else must not show what the flow works on.
_ASKED = {
    Ask.NOTHING: "It starts and frees nothing that others could have, so nobody else is asked.",
    Ask.GUEST: "Refused while anybody else shows the server's guest.",
    Ask.VOLUMES: "Refused while anybody else shows the server's guest, or one of its volumes.",
}


def _rules(flow: Flow) -> Iterator[str]:
    """What holds for the flow as a whole."""
    if flow.exclusive:
        yield "Nothing else may be done to the server meanwhile."
    else:
        yield "Other volumes of the server may be attached and detached meanwhile."
    if flow.patient:
        yield "What may work later is tried until it does."
    if flow.volumes:
        states = ", ".join(f"`{status}`" for status in sorted(flow.volumes.statuses))
        moved = ", also while Cinder migrates them" if flow.volumes.migrating else ""
        yield f"Accepted while its volumes are, in Cinder, {states}{moved}."
    yield _ASKED[flow.asks]
    yield f"The pivot is `{flow.pivot}`." if flow.pivot else "There is no pivot."


def _table(flow: Flow) -> Iterator[str]:
    """The flow's rows; which attachment is only said where there may be two."""
    sides = any(stage.side is Side.NEW for stage in flow.stages)
    heads = ["step", "where", "for each", *(["attachment"] * sides), "does", "undo"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for stage, step in diagram.table(flow):
        cells = [
            f"**`{step.name}`** (pivot)" if step.name == flow.pivot else f"`{step.name}`",
            stage.place.value,
            diagram.done_for(stage),
            *([stage.side.value] * sides),
            VERBS[step.do].words,
            VERBS[step.undo].words if step.undo else "",
        ]
        yield f"| {' | '.join(cells)} |"


def _index(found: list[tuple[ModuleType, list[Flow]]]) -> str:
    rows = []
    for module, own in found:
        links = ", ".join(f"[{flow.name}]({flow.name}.md)" for flow in own)
        rows.append(f"| {links} | {(inspect.getdoc(module) or '').partition(chr(10))[0]} |")
    return _INDEX.format(
        flows="\n".join(rows),
        places="\n".join(f"| {place.value} | {what} |" for place, what in _PLACES.items()),
    )


def _verbs() -> str:
    heads = ["verb", "does", "says", "to", "attempts", "of a fenced host", "leaves", "is"]
    rows = [heads, ["---"] * len(heads)]
    rows += [[str(cell) for cell in _verb(verb, spec)] for verb, spec in VERBS.items()]
    return _VERBS.format(table="\n".join(f"| {' | '.join(row)} |" for row in rows))


def _verb(verb: str, spec: VerbSpec) -> Iterator[object]:
    yield from (f"`{verb}`", spec.words, spec.call, spec.to, spec.retry.attempts)
    yield f"`{spec.instead or LedgerVerb.CHECKPOINT}` {spec.fence}" if spec.fence else ""
    yield spec.remnant or ""
    takes_back = [f"takes_back `{spec.takes_back}`"] if spec.takes_back else []
    yield ", ".join([*(name for name in _FACTS if getattr(spec, name)), *takes_back])


def write(directory: Path) -> None:
    """Make the directory hold these pages, and no others."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for path in directory.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (directory / name).write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
