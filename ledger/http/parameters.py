"""Query parameters as data: what a call of Nova's form may be asked with, by whom, or why not.

The rule: *a parameter is answered truly, or refused by name, and never ignored.*  A list that
leaves a filter out shows what nobody asked for, and whoever deletes what it shows deletes the wrong
thing.  Nova drops parameters that it does not know below 2.75, and those of administrators from
requests of others in all versions; here the former are 400 and the latter 403.  Every reading route
of `ledger.nova.routes_nova` has such a table, which is checked before its handler is called; for
lists of servers beside a Nova, which can answer what is refused here, by the handler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from host_agent.shared.platform.text import is_showable
from ledger.http import microversions
from ledger.http.call import Call
from ledger.http.problem import ApiError, unexpected


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """`says`: what it means, or, of one that is `refused`, why.

    `since`: the microversion that it came with.  `operators`: for who sees all projects.  `many`:
    it may be given several times.
    """

    name: str
    says: str
    since: microversions.Version = microversions.MIN
    refused: bool = False
    operators: bool = False
    many: bool = False


Parameters = tuple[Parameter, ...]


def of(says: str, *names: str, **more: bool | microversions.Version) -> Parameters:
    """Parameters of one meaning."""
    return tuple(Parameter(name=name, says=says, **more) for name in names)  # type: ignore[arg-type]


def check(call: Call, parameters: Iterable[Parameter]) -> None:
    """Return if the query has none but these, and those who ask may.  Raises ApiError."""
    known = {parameter.name: parameter for parameter in parameters}
    query = call.request.query
    for name in dict.fromkeys(query):
        parameter = known.get(name)
        if parameter is None or call.version < parameter.since:
            raise ApiError(400, "invalid", unexpected(name))
        if parameter.refused:
            raise ApiError(
                400,
                "not_supported",
                f"Query parameter '{name}' is not supported: {parameter.says}.",
            )
        if parameter.operators and not call.identity.everywhere:
            raise reserved(name)
        values = query.getall(name)
        if len(values) > 1 and not parameter.many:
            raise ApiError(400, "invalid", f"Query parameter '{name}' is given twice.")
        if not all(map(is_showable, values)):
            raise invalid(name, "", "It holds a control character.")


def reserved(name: str) -> ApiError:
    """A parameter, or a value of it, that is for who sees all projects."""
    return ApiError(
        403,
        "forbidden",
        f"Policy doesn't allow query parameter '{name}' to be used: it needs the role admin or "
        "operator.",
    )


def invalid(name: str, text: str, why: str) -> ApiError:
    """A value that means nothing, in Nova's words."""
    shown = text[:100]
    return ApiError(
        400, "invalid", f"Invalid input for query parameters {name}. Value: {shown}. {why}"
    )


_TRUE = frozenset({"1", "t", "true", "on", "y", "yes"})
_FALSE = frozenset({"0", "f", "false", "off", "n", "no"})


def boolean(name: str, text: str) -> bool:
    """As oslo_utils.strutils.bool_from_string has it, strictly.  ApiError 400."""
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise invalid(name, text, "A boolean is wanted.")


#: The zone of a time whose '+' was not quoted.
_ZONE = re.compile(r"(T.*) (\d\d:?\d\d)$", re.ASCII)


def moment(name: str, text: str) -> datetime:
    """A time, in UTC; without a zone it is that.  ApiError 400."""
    try:
        given = datetime.fromisoformat(_ZONE.sub(r"\1+\2", text))
        return (given if given.tzinfo else given.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise invalid(name, text, "A date and time is wanted.") from None


def period(query: Mapping[str, str]) -> tuple[datetime | None, datetime | None]:
    """`changes-since` and `changes-before`.  ApiError 400."""
    since, before = (
        moment(name, query[name]) if name in query else None
        for name in ("changes-since", "changes-before")
    )
    if since and before and before < since:
        text = "The value of changes-since must be less than or equal to changes-before."
        raise ApiError(400, "invalid", text)
    return since, before
