"""Reads JSON objects that another program sent: what is missing or of another type is named.

Unknown keys are ignored; the other side may be newer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class WireError(ValueError):
    """The message does not have the form of the contract."""


def take(data: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    """A value that has to be there.  Raises WireError."""
    if not isinstance(data, dict) or name not in data:
        raise WireError(f"{name!r} is missing")
    kinds = kind if isinstance(kind, tuple) else (kind,)
    # To Python true is a number, to everybody else it is not.
    if not isinstance(data[name], kinds) or (isinstance(data[name], bool) and bool not in kinds):
        raise WireError(f"{name!r} is a {type(data[name]).__name__}")
    return data[name]


def take_all(
    data: Any, required: Mapping[str, tuple[type, ...]], optional: Mapping[str, type]
) -> dict[str, Any]:
    """Values that have to be there, and those of others that are.  Raises WireError."""
    if not isinstance(data, dict):
        raise WireError(f"{next(iter(required))!r} is missing")
    found = {}
    for name, kinds in required.items():
        value = data.get(name)
        # `take` looks closer at what is not just so, and says what is wrong.
        found[name] = value if type(value) in kinds and name in data else take(data, name, kinds)
    for name, kind in optional.items():
        if (value := data.get(name)) is not None:
            found[name] = value if type(value) is kind else take(data, name, kind)
    return found


def may(data: Any, name: str, kind: type) -> Any:
    """A value that may be absent or null: then None.  Raises WireError."""
    return None if data.get(name) is None else take(data, name, kind)
