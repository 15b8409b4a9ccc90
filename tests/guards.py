"""What holds of every event and every error, whichever test makes it.

Tests of a rule look at what the rule is about.  These look at the rest: a fact that was lost on
the way to the log, an error without a code or a text, a result that no reader knows the name of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from aggregates.base import Aggregate, Event
from host_agent.shared.contract.messages import ErrorKind
from host_agent.shared.contract.ports import PortError

Fits = Callable[[Any], bool]

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
    for name, kind, fits in _declared(of):
        value = getattr(event, name)
        assert fits(value), f"{event.TOPIC}.{name} is {value!r}, and not of {kind}"


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
def _declared(kind: Any) -> list[tuple[str, Any, Fits]]:
    own = {name for name in kind.__dataclass_fields__ if name not in Event.__dataclass_fields__}
    hints = get_type_hints(kind).items()
    return [(name, hint, _fits(hint)) for name, hint in hints if name in own]


@cache
def _fits(kind: Any) -> Fits:
    """Made once for each type: a run of the tests checks millions of values."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda _: True
    if origin in {Union, UnionType}:
        fits = tuple(map(_fits, args))
        return lambda value: any(each(value) for each in fits)
    if origin is list:
        [of] = map(_fits, args)
        return lambda value: isinstance(value, list) and all(map(of, value))
    if origin is dict:
        key, of = map(_fits, args)
        return lambda value: (
            isinstance(value, dict) and all(map(key, value)) and all(map(of, value.values()))
        )
    if kind in {int, float}:
        return lambda value: isinstance(value, (int, kind)) and not isinstance(value, bool)
    return lambda value: isinstance(value, kind)
