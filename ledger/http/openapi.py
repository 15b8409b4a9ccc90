"""The OpenAPI document, made of the route table and the models; served at /openapi.json."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from host_agent.shared.contract import HOST_NAME
from host_agent.shared.contract.messages import Command
from host_agent.shared.contract.outputs import Outputs
from ledger.http import microversions
from ledger.http.parameters import Parameter
from ledger.http.route import Model, Route
from ledger.http.schemas import Problem
from ledger.nova.schemas_nova import NovaError

OPENAPI_VERSION = "3.1.0"
API_VERSION = "1.0.0"

Schema = dict[str, Any]
_REFERENCE = "#/components/schemas/{}"

_PATH_PARAMETERS: dict[str, Schema] = {
    "host": {"type": "string", "pattern": f"^{HOST_NAME}$"},
    "name": {"type": "string", "minLength": 1, "pattern": r"^[a-z0-9_-]+$"},
    "flavor_id": {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$"},
    "migration_id": {"type": "integer", "minimum": 1},
    "request_id": {"type": "string", "pattern": r"^[A-Za-z0-9_.-]{1,64}$"},
}
_UUID = {"type": "string", "format": "uuid"}
_HEADERS: dict[str, Schema] = {
    "Idempotency-Key": {"type": "string", "pattern": r"^[!-~]{1,255}$"},
    microversions.STANDARD_HEADER: {
        "type": "string",
        "pattern": r"^compute 2\.([1-9][0-9]?|10[0-5])$",
    },
}


def document(routes: Iterable[Route]) -> Schema:
    """The OpenAPI document of these routes."""
    routes = _once(routes)
    references, schemas = _described({pair for route in routes for pair in _models(route)})
    paths: dict[str, Schema] = {}
    for route in routes:
        operation = _operation(route, references, schemas)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": OPENAPI_VERSION,
        "info": {
            "title": "attachment-ledger",
            "version": API_VERSION,
            "description": "Block-volume attachments: Nova's form at /v2.1, our own at /v1.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}
            },
        },
    }


def _described(models: set[tuple[Model, Any]]) -> tuple[Any, Schema]:
    """How each model is referred to, and all schemas; with what the agents' contract names only."""
    ours = sorted((pair for pair in models if issubclass(pair[0], BaseModel)), key=str)
    references, definitions = models_json_schema(ours, ref_template=_REFERENCE.format("{model}"))
    theirs = sorted(models.difference(ours), key=str)
    told, schemas = msgspec.json.schema_components(
        [kind for kind, _ in (*theirs, (Command, ""), (Outputs, ""))],
        ref_template=_REFERENCE.format("{name}"),
    )
    for schema in schemas.values():
        if "description" in schema:
            schema["description"] = inspect.cleandoc(schema["description"])
    assert schemas.keys().isdisjoint(definitions["$defs"])
    return references | dict(zip(theirs, told, strict=False)), definitions["$defs"] | schemas


def _once(routes: Iterable[Route]) -> list[Route]:
    """A route with two spellings of its path is documented under the first."""
    return list({route.name: route for route in reversed(list(routes))}.values())[::-1]


def _models(route: Route) -> list[tuple[Model, Any]]:
    answers = [answer for answer in route.answers.values() if inspect.isclass(answer)]
    error = NovaError if route.nova else Problem
    bodies = route.body if isinstance(route.body, tuple) else (route.body,)
    asked = [model for model in (*bodies, route.query, error) if model is not None]
    return [
        *((model, "validation") for model in asked),
        *((model, _mode(route)) for model in answers),
    ]


def _mode(route: Route) -> str:
    """Nova's answers leave fields out, by microversion; ours are always whole."""
    return "validation" if route.nova else "serialization"


def _operation(route: Route, references: Any, definitions: Schema) -> Schema:
    text = inspect.getdoc(route.handler) or route.name
    operation: Schema = {
        "operationId": route.name,
        "summary": text.partition("\n")[0],
        "tags": ["nova" if route.nova else "ledger"],
        "parameters": [*_path_and_headers(route), *_query(route, references, definitions)],
        "responses": _responses(route, references),
    }
    if route.rules:
        operation["description"] = f"Policy: {' or '.join(route.rules)}."
        operation["security"] = [{"token": []}]
    if route.body is not None:
        schema = _body(route.body, references)
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _body(body: Model | tuple[Model, Model], references: Any) -> Schema:
    if not isinstance(body, tuple):
        schema: Schema = references[body, "validation"]
        return schema
    first, second = (references[model, "validation"] for model in body)
    return {"anyOf": [{"allOf": [first, second]}, first]}


def _path_and_headers(route: Route) -> list[Schema]:
    names = re.findall(r"{(\w+)}", route.path)
    versioned = (microversions.STANDARD_HEADER,) if route.path.startswith("/v2.1/") else ()
    return [
        *(
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": _PATH_PARAMETERS.get(name, _UUID),
            }
            for name in names
        ),
        *(
            {"name": name, "in": "header", "required": False, "schema": _HEADERS[name]}
            for name in (*route.headers, *versioned)
        ),
    ]


def _query(route: Route, references: Any, definitions: Schema) -> list[Schema]:
    if route.query is None:
        return [_named(parameter) for parameter in route.parameters or ()]
    name = references[route.query, "validation"]["$ref"].rpartition("/")[2]
    schema = definitions[name]
    return [
        {
            "name": key,
            "in": "query",
            "required": key in schema.get("required", ()),
            "schema": _without_null(value),
        }
        for key, value in schema.get("properties", {}).items()
    ]


def _named(parameter: Parameter) -> Schema:
    """One of Nova's; what is wrong with a text of it is told with 400."""
    text: Schema = {"type": "string"}
    many: Schema = {"style": "form", "explode": True} if parameter.many else {}
    return {
        "name": parameter.name,
        "in": "query",
        "required": False,
        "description": parameter.says,
        "schema": {"type": "array", "items": text} if parameter.many else text,
        **({"deprecated": True} if parameter.refused else {}),
        **many,
    }


def _without_null(schema: Schema) -> Schema:
    """A parameter that is not given is absent, never null."""
    choices = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    rest = {k: v for k, v in schema.items() if k not in {"anyOf", "default", "title"}}
    return {**rest, **choices[0]} if len(choices) == 1 else rest


def _responses(route: Route, references: Any) -> Schema:
    responses: Schema = {}
    for status, answer in route.answers.items():
        responses[str(status)] = described = {"description": HTTPStatus(status).phrase}
        if isinstance(answer, str):
            described["content"] = {answer: {}}  # type: ignore[assignment]
        elif answer is not None:
            content = {"application/json": {"schema": references[answer, _mode(route)]}}
            described["content"] = content  # type: ignore[assignment]
    for each in route.formats:
        responses["200"]["content"][each] = {}
    media = "application/json" if route.nova else "application/problem+json"
    error = references[NovaError if route.nova else Problem, "validation"]
    for family in ("4XX", "5XX"):
        responses[family] = {
            "description": "Refused" if family == "4XX" else "Failed",
            "content": {media: {"schema": error}},
        }
    return responses
