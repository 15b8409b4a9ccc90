"""The acts of docs/acts.md, made of their rows: command, request, fields, rule.

`python -m tests.pages.acts_page FILE` (`make docs`) writes them between the marks of the page; a
test holds that the page is current.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from ledger.words.acts import ACTS, Act, Field, FieldKind
from tests.pages.made_pages import with_made

_METAVARS = {FieldKind.TEXT: "TEXT", FieldKind.CLASSES: "CLASS"}


def page(text: str) -> str:
    """The page with the acts as they are now."""
    parts = [part for _, some in groupby(ACTS, lambda act: act.of) for part in _of_thing(some)]
    return with_made(text, "\n\n".join(parts))


def _of_thing(acts: Iterator[Act]) -> Iterator[str]:
    for number, act in enumerate(acts):
        if number == 0:
            yield f"## Of {_a(act.of.kind) if act.of.kind else 'everything'}"
        yield f"### {act.title}"
        yield act.words
        which = [f"<{act.of.kind}>"] * bool(act.of.kind)
        typed = [_typed(each) for each in act.fields]
        more = ["[--dry-run]"] * act.of.dry_run + ["[--wait]"] * bool(act.wait or act.of.wait)
        command = " ".join([act.command, *which, *typed, *more])
        names = ", ".join(f'"{each.name}"' for each in act.fields)
        body = f'{{"{act.name}": {{{names}}}}}' if act.of.wraps else f"{{{names}}}"
        yield f"```\n{command}\nPOST {act.path}\n     {body}\n```"
        fields = [f"- `{each.name}`: {each.help}" for each in act.fields if each.help]
        yield "\n".join(
            [*fields, f"- rule: `attachment-ledger:{act.filled(act.rule or act.of.rule)}`"]
        )


def _typed(each: Field) -> str:
    match each.kind:
        case FieldKind.STEP:
            return f"<{each.name}>"
        case FieldKind.FLAG | FieldKind.APPLY:
            return f"[--{each.name}]"
    what = _METAVARS.get(each.kind, each.name.upper())
    said = f"--{each.option or each.name} {what}"
    return said if each.needed else f"[{said}]"


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text()))
