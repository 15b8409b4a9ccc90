"""The page docs/reference.md: what the code says of itself, in tables.

`python -m tests.pages.reference_page FILE` (`make docs`) writes it.  Nothing in it is written by
hand, and a test checks that it is current.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from http import HTTPStatus
from itertools import groupby
from pathlib import Path
from typing import Any

from prometheus_client import Metric

from aggregates import errors
from host_agent.shared.platform.telemetry import call_seconds
from ledger import http as api
from ledger.auth.tls import gauges
from ledger.http import microversions
from ledger.http.parameters import Parameter, Parameters
from ledger.http.probes.metrics import Metrics, registry_of
from ledger.http.routes import ROUTES
from ledger.log.writer import Writer
from ledger.nova.servers.actions import ACTIONS
from ledger.nova.servers.properties import TABLES
from ledger.nova_beside.notifications import Notices
from ledger.telemetry import StepNumbers
from ledger.traces.export import counters
from tests.pages.made_pages import fitted

#: A code that is used for more kinds of refusal says too little of each.
USES_SHOWN_MAX = 2

_PAGE = """\
# Reference

`make docs` generates this page from the code. [The API](api.md) explains the tables.

## Routes, and who may use them

Each route has a rule of [the policy](policy.md); of several rules, one must permit the request.

{routes}

The route `server_action` is under the rule of its action:

{actions}

## Query parameters of Nova's lists

The parameters that the ledger knows. A refused one is answered with the status and reason of its
row, any other parameter with 400. Parameters for operators are 403 for other users.

{parameters}

## Properties of a server that is created

The properties of `POST /v2.1/servers`; under `update`, those of `PUT` of a server. A refused
property is accepted with a value that has no effect (empty, `false`, or what its row says). Any
other property is 400.

{properties}

## Error codes

`code` of a problem of `/v1`; codes are stable. `/v2.1` shows only the status and the message.
`...` stands for the rest of a long message. If Cinder refuses something, the answer has Cinder's
message, and 400, 403, 404 or 503.

{codes}

## Metrics

{metrics}
"""


def page() -> str:
    """The text of the page."""
    return _PAGE.format(
        routes=_table(["request", "name", "rule"], _routes()),
        actions=_table(["action", "rule", "and who names the host"], _actions()),
        parameters=_table(["request", "parameter", "from", "what it says"], _parameters()),
        properties=_table(["in", "property", "known in", "what it says"], _properties()),
        codes=_table(["code", "status", "message"], _codes()),
        metrics=_table(["metric", "type", "labels", "what it says"], _metrics()),
    )


def _routes() -> Iterator[list[str]]:
    for route in ROUTES:
        rules = [f"`{rule}`" for rule in route.rules]
        who = ", ".join(rules) if rules else "everybody, without a token"
        if route.name == "server_action":
            who = "its action's"
        yield [f"`{route.method} {route.path}`", f"`{route.name}`", who]


def _actions() -> Iterator[list[str]]:
    for name, action in ACTIONS.items():
        yield [f"`{name}`", f"`{action.rule}`", f"`{action.host_rule}`" if action.host_rule else ""]


def _parameters() -> Iterator[list[str]]:
    """Those of one meaning, and lists with the same ones, are one row."""
    lists: dict[Parameters, list[str]] = defaultdict(list)
    for route in ROUTES:
        if route.parameters:
            lists[route.parameters].append(f"`{route.path.removeprefix('/v2.1')}`")
    for parameters, paths in lists.items():
        for alike in _alike(parameters):
            first, names = alike[0], ", ".join(f"`{each.name}`" for each in alike)
            who = "for operators: " if first.operators else ""
            says = f"400: {first.says}" if first.refused else f"{who}{first.says}"
            yield [", ".join(paths), names, microversions.shown(first.since), says]


def _alike(parameters: Parameters) -> Iterator[list[Parameter]]:
    """Parameters that differ in nothing but their names, as they follow each other."""
    for _, same in groupby(parameters, lambda each: replace(each, name="")):
        yield list(same)


def _properties() -> Iterator[list[str]]:
    """Those of one meaning are one row."""
    for where, table in TABLES.items():
        for _, same in groupby(table, lambda each: replace(each, name="")):
            alike = list(same)
            first, names = alike[0], ", ".join(f"`{each.name}`" for each in alike)
            until = first.until and f" to {microversions.shown((2, first.until[1] - 1))}"
            says = first.says if first.accepted is None else f"400: {first.says}"
            yield [f"`{where}`", names, f"{microversions.shown(first.since)}{until or ''}", says]


def _codes() -> Iterator[list[str]]:
    """Code, status and message of each refusal; a code of many uses shows no message."""
    found: Mapping[str, list[tuple[str, str]]] = defaultdict(list)
    for code, status, message in [*_codes_of_the_core(), *_codes_of_the_api()]:
        if (status, message) not in found[code]:
            found[code].append((status, message))
    for code, uses in sorted(found.items()):
        statuses = ", ".join(sorted({status for status, _ in uses}))
        messages = [message for _, message in uses if message]
        message = " / ".join(messages) if len(uses) <= USES_SHOWN_MAX else ""
        yield [f"`{code}`", statuses, fitted(message)[0]]


def _codes_of_the_core() -> Iterator[tuple[str, str, str]]:
    for kind in _subclasses(errors.DomainError):
        if kind.__module__.startswith("tests."):
            continue
        message = " ".join(inspect.cleandoc(kind.__doc__ or "").split())
        yield kind.code, str(kind.status), message


def _subclasses(kind: type[errors.DomainError]) -> Iterator[type[errors.DomainError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _codes_of_the_api() -> Iterator[tuple[str, str, str]]:
    """What modules of the API raise or answer with a code that is written there."""
    for found in pkgutil.walk_packages(api.__path__, f"{api.__name__}."):
        for node in ast.walk(ast.parse(inspect.getsource(importlib.import_module(found.name)))):
            match node:
                case ast.Call(
                    func=ast.Name(id="ApiError"),
                    args=[
                        ast.Constant(value=int(status)),
                        ast.Constant(value=str(code)),
                        message,
                    ],
                ):
                    yield code, str(status), _text(message)
                case ast.Call(
                    func=ast.Name(id="not_found"), args=[ast.Constant(value=str(code)), message]
                ):
                    yield code, str(HTTPStatus.NOT_FOUND.value), _text(message)
                case ast.Call(func=ast.Name(id="Failure"), keywords=named):
                    given: dict[str | None, Any] = {each.arg: each.value for each in named}
                    match given["code"], given["status"]:
                        case ast.Constant(value=str(code)), ast.Constant(value=int(status)):
                            yield code, str(status), _text(given["detail"])
                        case ast.Constant(value=str(code)), _:
                            yield code, "any other", ""


def _text(node: ast.expr) -> str:
    """A message as it stands in the code; what it names is `{...}`."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_text, parts))
        case ast.FormattedValue():
            return "{...}"
    return ""  # put together elsewhere


def _metrics() -> Iterator[list[str]]:
    """What a registry has that is filled as the service does it."""
    registry = registry_of(Writer(""), StepNumbers(), call_seconds())
    registry.register(Notices().counted)
    Metrics(registry)
    counting = registry._collector_to_names
    shown: list[tuple[object, Metric]] = [(of, each) for of in counting for each in of.collect()]
    shown += [(each, each) for each in [*gauges(0.0, ending=False, failed=False), *counters({})]]
    for of, family in shown:  # one of them knows the labels' names
        names = getattr(family, "_labelnames", ()) or getattr(of, "_labelnames", ())
        labels = ", ".join(f"`{name}`" for name in names)
        counts = "_total" if family.type == "counter" else ""
        yield [f"`{family.name}{counts}`", family.type, labels, family.documentation]


def _table(heads: list[str], rows: Iterable[list[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
