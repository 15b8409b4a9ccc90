"""What holds of every event and every error, whichever test makes it.

Tests of a rule look at what the rule is about.  These look at the rest: a fact that was lost on
the way to the log, an error without a code or a text, a result that no reader knows the name of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import repeat
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from aggregates.base import Aggregate, Event
from host_agent.shared.contract import ErrorKind
from host_agent.shared.ports import PortError

_CODE = re.compile(r"[a-z][a-z0-9_]*")
#: Everything that a verb of a host or an effect of the ledger tells; somebody reads each of these.
_OUTPUTS = frozenset(
    {
        "access_mode",
        "adopted",
        "attachment_id",
        "bus",
        "connector_host",
        "deleted",
        "device_name",
        "device_path",
        "disk",
        "driver",
        "ended",
        "passed",
        "power_state",
        "refused",
        "shared",
        "shown",
        "size_bytes",
        "target_digest",
        "volume_id",
    }
)


@contextmanager
def everywhere() -> Iterator[None]:
    """Fail whatever records an event that is not as it is declared, or makes an empty error."""
    with pytest.MonkeyPatch.context() as patch:
        _after(patch, Aggregate, "record", lambda it: check_event(it._pending[-1]))
        _after(patch, PortError, "__init__", _check_failure)
        yield


def _after(patch: pytest.MonkeyPatch, kind: type, name: str, check: Any) -> None:
    call = getattr(kind, name)

    def checked(self: Any, *args: Any, **more: Any) -> None:
        call(self, *args, **more)
        check(self)

    patch.setattr(kind, name, checked)


def check_event(event: Event) -> None:
    """Each fact is of the declared type; None only where that is declared."""
    of: Any = type(event)
    for name, kind in _declared(of).items():
        value = getattr(event, name)
        assert _fits(value, kind), f"{event.TOPIC}.{name} is {value!r}, and not of {kind}"


def check_outputs(outputs: dict[str, Any]) -> dict[str, Any]:
    """A fact under a name that nobody reads is lost."""
    assert set(outputs) <= _OUTPUTS, outputs
    return outputs


def _check_failure(error: PortError) -> None:
    assert isinstance(error.kind, ErrorKind), error.kind
    assert isinstance(error.code, str), error.code
    assert _CODE.fullmatch(error.code), error.code
    assert isinstance(error.message, str), error.code
    assert error.message, f"{error.code} says what, why, and what to do next"


@cache
def _declared(kind: Any) -> dict[str, Any]:
    own = {name for name in kind.__dataclass_fields__ if name not in Event.__dataclass_fields__}
    return {name: hint for name, hint in get_type_hints(kind).items() if name in own}


def _fits(value: Any, kind: Any) -> bool:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in {Union, UnionType}:
        return any(_fits(value, each) for each in args)
    if origin is list:
        return isinstance(value, list) and all(_fits(each, args[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(map(_fits_pair, value.items(), repeat(args)))
    if kind in {int, float}:
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, kind)


def _fits_pair(pair: tuple[Any, Any], kinds: tuple[Any, Any]) -> bool:
    return _fits(pair[0], kinds[0]) and _fits(pair[1], kinds[1])
