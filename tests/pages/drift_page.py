"""The tables of docs/reconciliation.md: what can differ, as `handlers/drift/classes.py` has it.

`python -m tests.pages.drift_page FILE` (`make docs`) writes them between the marks of the page; all
else there is written by hand, and a test checks that the tables are current.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from handlers.drift.classes import CLASSES, DriftClass, subject_of
from tests.pages.made_pages import fitted, with_made


def tables() -> str:
    """A table for each subject, in the order of the code."""
    parts = []
    for subject, some in groupby(CLASSES, subject_of):
        head = "| class | severity | it means | repair |"
        rows, notes = zip(*map(_row, some), strict=True)
        parts.append(f"### {subject.capitalize()}\n\n{head}\n|---|---|---|---|")
        parts[-1] += "".join(f"\n{row}" for row in rows)
        parts += filter(None, notes)
    return "\n\n".join(parts)


def page(text: str) -> str:
    """The page with the tables as they are now."""
    return with_made(text, tables())


def _row(each: DriftClass) -> tuple[str, str]:
    """The row, and what stands below the table, as it is too long."""
    meaning, further = fitted(each.meaning)
    mends, more = fitted(" ".join(_mends(each)))
    row = f"| `{each.name}` | {each.severity} | {meaning} | {mends} |"
    rest = " ".join(f"... {text}" for text in (further, more) if text)
    return row, rest and f"`{each.name}`: {rest}"


def _mends(each: DriftClass) -> Iterator[str]:
    if each.repair is not None:
        asked = ", ".join(each.again)
        names = " or ".join(f"`{name}`" for name in (each.repair, each.or_else) if name)
        yield f"{names}, after it has asked: {asked}."
    if each.by_hand:
        yield each.by_hand


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text()))
