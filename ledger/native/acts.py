"""The routes of acts, made of the rows of `ledger.words.acts`.

A handler is called with what was said, by the names of the act's fields.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import wraps
from itertools import groupby
from pkgutil import resolve_name
from typing import Annotated, Any

from aiohttp import web
from pydantic import ConfigDict, Field, StringConstraints, create_model

from aggregates.operation import SERVER
from handlers.engine.plan import LANES_MAX
from ledger.http.call import Call
from ledger.http.problem import ApiError
from ledger.http.route import IDEMPOTENT, Route
from ledger.http.schemas import Asked, HostName, Id, Reason
from ledger.native.drift.schemas_drift import ClassName, Moment
from ledger.native.schemas import ActQuery
from ledger.words.acts import ACTS, Act, FieldKind

#: By what a field holds: its type, and what it is where it is not said.
_TYPES: dict[FieldKind, tuple[Any, Any]] = {
    FieldKind.TEXT: (Reason, None),
    FieldKind.MOMENT: (Moment, None),
    FieldKind.FLAG: (bool, False),
    FieldKind.APPLY: (bool, False),
    FieldKind.NAME: (ClassName, None),
    FieldKind.CLASSES: (list[ClassName], Field(default_factory=list, max_length=100)),
    FieldKind.STEP: (Annotated[str, StringConstraints(min_length=1, max_length=64)], None),
    FieldKind.LANE: (Annotated[int, Field(ge=SERVER, lt=LANES_MAX)], 0),
    FieldKind.HOST: (HostName, None),
    FieldKind.SERVER: (Id, None),
    FieldKind.VOLUME: (Id, None),
}


def _models() -> dict[str, type[Asked]]:
    """By name, what is sent; acts that are told the same have one model."""
    said = {act.body: act for act in reversed(ACTS)}
    return {name: _model(name, act) for name, act in said.items()}


def _model(name: str, act: Act) -> type[Asked]:
    fields: dict[str, Any] = {}
    for each in act.fields:
        kind, default = _TYPES[each.kind]
        if each.needed:
            fields[each.name] = kind
        else:
            fields[each.name] = (kind | None if default is None else kind, default)
    return create_model(name, __base__=Asked, __doc__=act.note or None, **fields)


BODIES = _models()


class _OneOf(Asked):
    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})


def _one_of(acts: Sequence[Act]) -> type[Asked]:
    """Of acts that are one route."""
    fields: dict[str, Any] = {act.name: (BODIES[act.body] | None, None) for act in acts}
    text = "Exactly one of the acts."
    return create_model("OperationAct", __base__=_OneOf, __doc__=text, **fields)


def _handler(act: Act, body: type[Asked]) -> Callable[[Call], Awaitable[web.StreamResponse]]:
    does: Callable[..., Awaitable[web.StreamResponse]]
    does = resolve_name(f"ledger.native.{act.filled(act.handler or act.of.handler)}")

    @wraps(does)
    async def handled(call: Call) -> web.StreamResponse:
        said = await call.json(body)
        if act.of.wraps:
            name, said = _chosen(said)
            return await does(call, name, **dict(said))
        return await does(call, **dict(said))

    return handled


def _chosen(wanted: Asked) -> tuple[str, Asked]:
    """The act that is meant, and what was said of it.  ApiError 400."""
    if len(wanted.model_fields_set) != 1:
        names = ", ".join(type(wanted).model_fields)
        raise ApiError(400, "invalid", f"Name exactly one of {names}.")
    [name] = wanted.model_fields_set
    said: Asked | None = getattr(wanted, name)
    if said is None:
        raise ApiError(400, "invalid", f"'{name}' needs an object with a reason.")
    return name, said


def _routes() -> Iterator[Route]:
    for _, same in groupby(ACTS, lambda act: act.route):
        acts = list(same)
        act = acts[0]
        body = _one_of(acts) if act.of.wraps else BODIES[act.body]
        yield Route(
            name=act.route,
            method="POST",
            path=act.path,
            handler=_handler(act, body),
            body=body,
            query=ActQuery if act.of.dry_run else None,
            answers={
                status: resolve_name(f"ledger.native.{model}")
                for status, model in (act.answers or act.of.answers).items()
            },
            headers=IDEMPOTENT if act.begins else (),
            rules=(f"attachment-ledger:{act.filled(act.rule or act.of.rule)}",),
        )


ROUTES = tuple(_routes())
