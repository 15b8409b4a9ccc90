"""The wire format of ledger and agents: each message is one type, which defines all of it.

A type names the keys and their limits; msgspec reads a message by it and refuses what it does not
allow, and the OpenAPI document is made of it.  A `dataclass` is an object in the code, too; a
`TypedDict` stays a dict there, without the keys that it does not name.  Unknown keys are ignored:
the other side may be newer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from msgspec.inspect import DataclassType

T = TypeVar("T")


class WireError(ValueError):
    """The message does not have the form of the contract."""


def read(data: Any, kind: type[T]) -> T:
    """The message in what JSON holds.  Raises WireError, which says what is wrong at which key."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise WireError(str(error)) from None


def read_in_turns(data: dict[str, Any], kind: type[T]) -> T:
    """The same of a large message: msgspec lets no other thread run, so it is given the objects in
    the message's lists one by one.
    """
    return read({**data, **dict(_pieces(data, kind))}, kind)


def _pieces(data: dict[str, Any], kind: type) -> Iterator[tuple[str, list[Any]]]:
    for name, piece in _lists(kind):
        items = data.get(name)
        if isinstance(items, list):
            try:
                yield name, [read(item, piece) for item in items]
            except WireError as error:
                raise WireError(f"{error}, of an item of '{name}'") from None


@cache
def _lists(kind: type) -> list[tuple[str, type]]:
    """The lists of objects in a message, each with their type."""
    about: Any = msgspec.inspect.type_info(kind)
    items = ((field.name, getattr(field.type, "item_type", None)) for field in about.fields)
    return [(name, item.cls) for name, item in items if isinstance(item, DataclassType)]


def plain(message: Any) -> Any:
    """What JSON holds of a message: objects, lists, texts, numbers."""
    return msgspec.json.decode(msgspec.json.encode(message))


def form(pattern: str) -> Meta:
    """A text that is all of this; for Python and for JSON Schema, whose `$` differ at a newline."""
    return Meta(pattern=rf"^(?:{pattern})$(?!\n)")


def refers_to(name: str) -> Meta:
    """What the OpenAPI document says of a part that is read by itself, later."""
    return Meta(extra_json_schema={"$ref": f"#/components/schemas/{name}"})


NUMBER_MAX = 2**31 - 1
#: What JSON and PostgreSQL count exactly.
BYTES_MAX = 2**53 - 1

Id = Annotated[
    str,
    form("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    Meta(extra_json_schema={"format": "uuid"}),
]
Word = Annotated[str, form("[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")]
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Run = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
Bytes = Annotated[int, Meta(ge=0, le=BYTES_MAX)]
