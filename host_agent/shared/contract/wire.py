"""The wire format of ledger and agents: one type defines each message.

A type has the keys and their limits.  msgspec decodes a message by it and refuses invalid ones; the
OpenAPI document is made from it.  A `dataclass` becomes an object; a `TypedDict` a dict with only
its own keys.  Unknown keys are ignored, because the other side may be newer.
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
    """The message from decoded JSON.  Raises WireError, which names the key and the problem."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise WireError(str(error)) from None


def read_in_turns(data: dict[str, Any], kind: type[T]) -> T:
    """As `read`, for a large message: the objects in its lists are converted one by one, because
    msgspec holds the GIL.
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
    """The names of a message's lists of objects, with the type of their items."""
    about: Any = msgspec.inspect.type_info(kind)
    items = ((field.name, getattr(field.type, "item_type", None)) for field in about.fields)
    return [(name, item.cls) for name, item in items if isinstance(item, DataclassType)]


def plain(message: Any) -> Any:
    """The message as decoded JSON."""
    return msgspec.json.decode(msgspec.json.encode(message))


def form(pattern: str) -> Meta:
    """A text that matches entirely, in Python and in JSON Schema, whose `$` differ at a newline."""
    return Meta(pattern=rf"^(?:{pattern})$(?!\n)")


def refers_to(name: str) -> Meta:
    """The schema of a part that is decoded separately, for the OpenAPI document."""
    return Meta(extra_json_schema={"$ref": f"#/components/schemas/{name}"})


NUMBER_MAX = 2**31 - 1
#: The largest integer that is exact in JSON (a double).
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
