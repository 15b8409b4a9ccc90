"""Of the page docs/events.md every event that can be in the log, made from its class.

`python -m tests.pages.events_page FILE` (`make docs`) writes them between the marks of the page;
all else there is written by hand, and a test checks that they are current.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from aggregates.base import Aggregate, Event
from aggregates.catalogue import AGGREGATES, events_of
from tests.pages.made_pages import with_made

#: What Python's names of types are in JSON.
_JSON = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "dict[str, Any]": "object",
    "dict[str, str]": "object",
    "dict[str, int]": "object",
    "list": "array",
    "None": "null",
    "|": "or",
}
_TYPE = re.compile("|".join(map(re.escape, sorted(_JSON, key=len, reverse=True))))


def page(text: str) -> str:
    """The page with the events as they are now."""
    return with_made(text, catalogue())


def catalogue() -> str:
    """Every event, by aggregate, in the order of the code."""
    return "\n\n".join(map(_aggregate, AGGREGATES))


def _aggregate(aggregate: type[Aggregate]) -> str:
    module = inspect.getdoc(inspect.getmodule(aggregate)) or ""
    about = " ".join(module.partition("\n\n")[0].split())
    parts = [f"## {aggregate.__name__}", about, *map(_event, events_of(aggregate))]
    return "\n\n".join(parts)


def _event(kind: type[Event]) -> str:
    meaning = "\n\n".join(
        " ".join(paragraph.split())
        for paragraph in inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    )
    rows = list(_fields(kind))
    table = ["| field | type | missing |", "|---|---|---|", *rows] if rows else ["No fields."]
    heading = f"### `{kind.TOPIC}`, version {kind.class_version}"
    return "\n\n".join([heading, meaning, "\n".join(table)])


def _fields(kind: type[Event]) -> Iterator[str]:
    common = {field.name for field in dataclasses.fields(Event)}
    for field in dataclasses.fields(kind):
        if field.name not in common:
            type_ = _TYPE.sub(lambda found: _JSON[found[0]], str(field.type))
            yield f"| `{field.name}` | {type_} | {_default(field)} |"


def _default(field: dataclasses.Field[object]) -> str:
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return ""
    return "`null`" if value is None else f"`{str(value).lower()}`"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text()))
