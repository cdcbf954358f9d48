"""What one endpoint is, as an Operation, and the OpenAPI document of all of them, also as a page."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from http import HTTPStatus
from importlib.metadata import version
from inspect import cleandoc
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.access import ADMIN
from livescale.services.gateway.errors import ErrorBody
from livescale.services.gateway.parameters import IGNORED

Serve = Callable[[Request], Awaitable[Response]]

BODY_ERRORS = (400, 408, 413, 415)
BUS_ERRORS = (429, 503, 504)
MODEL_ERRORS = (404, 500, 503)
GENERATION_ERRORS = (*BODY_ERRORS, *MODEL_ERRORS, 429, 504)

JSON = "application/json"
REF = "#/components/schemas/{name}"
RETRY = {"retry-after": "Whole seconds", "retry-after-ms": "The same, exactly"}
LIMITS = {
    f"x-ratelimit-{part}-{what}": f"Of the key's {what}, where they are limited"
    for what in ("requests", "tokens")
    for part in ("limit", "remaining", "reset")
}
# What a parameter of a body needs beside it, unless it asks for nothing.
NEEDED = (
    ("stream_options", {"type": "object"}, "stream"),
    ("top_logprobs", {"type": "integer", "minimum": 1}, "logprobs"),
)
Document = dict[str, Any]

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
details {{ border: 1px solid #8885; border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem; }}
summary {{ cursor: pointer; }} code, pre {{ font: 13px ui-monospace, monospace; }} pre {{ overflow: auto; }}
table {{ border-collapse: collapse; }} td {{ padding: .1rem .8rem .1rem 0; vertical-align: top; }}
.method {{ display: inline-block; width: 3.2rem; font-weight: 600; }} .doc {{ color: #666; }}
</style>
<h1>{title}</h1>
<p>Version {version}. The same as a document: <a href="/openapi.json">/openapi.json</a>.</p>
{operations}
<h2>Objects</h2>
{schemas}
</html>
"""


@dataclass(frozen=True)
class Operation:
    """One endpoint. `answers` has, by status, the type of the JSON body or a media type; `stream` is the type of an
    event, `error` that of the body of an error. `protected` endpoints need an API key where there are keys."""

    method: str
    path: str
    serve: Serve
    summary: str
    answers: dict[int, Any]
    body: Any = None
    stream: Any = None
    errors: tuple[int, ...] = ()
    error: Any = ErrorBody
    query: tuple[tuple[str, str], ...] = ()
    protected: bool = False


def describe(operations: Sequence[Operation], *, with_key: bool) -> Document:
    """The OpenAPI 3.1 document of these operations. `with_key` says whether protected operations need an API key
    here."""
    schemas = _schemas(operations)
    paths: Document = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas[0], with_key)
    components: Document = {"schemas": schemas[1]}
    if with_key:
        components["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "livescale", "version": version("livescale"), "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": components,
    }


def _schemas(operations: Sequence[Operation]) -> tuple[dict[Any, Document], Document]:
    """For each type the schema that refers to it, and all components that they refer to."""
    types: list[Any] = [ErrorBody]  # also where no operation has it: of what there is not
    for operation in operations:
        candidates = [operation.error, operation.body, operation.stream, *operation.answers.values()]
        types.extend(one for one in candidates if one is not None and not isinstance(one, str) and one not in types)
    references, components = msgspec.json.schema_components(types, ref_template=REF)
    # A docstring's later lines are indented, which readers of Markdown take for code.
    for component in components.values():
        if "description" in component:
            component["description"] = cleandoc(component["description"])
    for operation in operations:
        if operation.body is not None:
            _close(components[operation.body.__name__], IGNORED.get(operation.body, {}))
    known = dict(zip(types, references, strict=True))
    for operation in operations:
        if operation.stream is not None:
            kinds = [known[operation.stream], known[operation.error]]
            components[_event_name(operation.stream)] = _event(kinds)
    return known, components


def _close(component: Document, ignored: Mapping[str, str]) -> None:
    """Say of a body what the gateway refuses of it: other parameters, and some without another one."""
    properties = component["properties"]
    properties |= {name: {"description": f"Accepted and ignored. {why}"} for name, why in ignored.items()}
    component["additionalProperties"] = False
    rules = [
        {
            "if": {"required": [name], "properties": {name: asking}},
            "then": {"required": [other], "properties": {other: {"const": True}}},
        }
        for name, asking, other in NEEDED
        if name in properties and other in properties
    ]
    if rules:
        component["allOf"] = rules


def _operation(operation: Operation, schemas: dict[Any, Document], with_key: bool) -> Document:
    errors = {
        *operation.errors,
        *((401, 429) if operation.protected and with_key else ()),
        *((403,) if operation.path.startswith(ADMIN) else ()),
    }
    responses = {str(status): _answer(operation, status, schemas) for status in operation.answers}
    error = {JSON: {"schema": schemas[operation.error]}}
    responses |= {
        str(status): {"description": HTTPStatus(status).phrase, "content": error} for status in sorted(errors)
    }
    for status, response in responses.items():
        response["headers"] = _headers(int(status), limited=operation.protected and with_key)
    described: Document = {
        "operationId": operation.method.lower() + re.sub(r"\W+", "_", operation.path).rstrip("_"),
        "summary": operation.summary,
        "parameters": _parameters(operation),
        "responses": responses,
    }
    if operation.body is not None:
        content = {JSON: {"schema": schemas[operation.body]}}
        described["requestBody"] = {"required": True, "content": content}
    if operation.protected and with_key:
        described["security"] = [{"key": []}, {"x-api-key": []}]
    return described


def _answer(operation: Operation, status: int, schemas: dict[Any, Document]) -> Document:
    kind = operation.answers[status]
    if isinstance(kind, str):
        content: Document = {kind: {"schema": {"type": "string"}}}
    else:
        content = {JSON: {"schema": schemas[kind]}}
    if operation.stream is not None:
        content["text/event-stream"] = {"schema": {"$ref": REF.format(name=_event_name(operation.stream))}}
    return {"description": HTTPStatus(status).phrase, "content": content}


def _event_name(kind: type[msgspec.Struct]) -> str:
    return f"{kind.__name__}Event"


def _event(kinds: list[Document]) -> Document:
    """The schema of one event of a stream, whose data is one of these kinds, or says that the stream is done."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": {"anyOf": kinds}}
    return {
        "title": "Event",
        "description": "An event of a stream",
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, data]}},
    }


def _headers(status: int, *, limited: bool) -> Document:
    """The headers of an answer with this status. `limited` says that the client's key may have limits."""
    always = {"x-request-id": "The request's own, or a new one"}
    if status == 401:
        always["www-authenticate"] = "Bearer"
    if status == 429:
        always |= RETRY
    sometimes = RETRY if status == 503 else {}
    if limited and status != 401:
        sometimes = {**sometimes, **LIMITS}
    return {
        name: {"description": doc, "required": name in always, "schema": {"type": "string"}}
        for name, doc in {**sometimes, **always}.items()
    }


def _parameters(operation: Operation) -> list[Document]:
    text = {"type": "string"}
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    in_path = [{"name": name, "in": "path", "required": True, "schema": text} for name in names]
    in_query = [{"name": name, "in": "query", "description": doc, "schema": text} for name, doc in operation.query]
    return [*in_path, *in_query]


def docs_page(document: Mapping[str, Any]) -> str:
    """Return an OpenAPI document as one page of HTML."""
    operations = [
        _operation_in_page(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [_schema_in_page(name, schema) for name, schema in sorted(document["components"]["schemas"].items())]
    return PAGE.format(
        title=escape(document["info"]["title"]),
        version=escape(document["info"]["version"]),
        operations="\n".join(operations),
        schemas="\n".join(schemas),
    )


def _operation_in_page(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = [("takes", _content(operation["requestBody"]))] if "requestBody" in operation else []
    rows += [(f"{one['name']} ({one['in']})", escape(one.get("description", ""))) for one in operation["parameters"]]
    rows += [
        (status, f"{escape(answer['description'])}: {_content(answer)}")
        for status, answer in operation["responses"].items()
    ]
    head = f'<span class="method">{method.upper()}</span> <code>{escape(path)}</code> {escape(operation["summary"])}'
    return f"<details><summary>{head}</summary>{_table(rows)}</details>"


def _content(holder: Mapping[str, Any]) -> str:
    return ", ".join(f"{_kind(one['schema'])} as {escape(media)}" for media, one in holder["content"].items())


def _schema_in_page(name: str, schema: Mapping[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        (
            f"<code>{escape(field)}</code>{'' if field in required else ' (optional)'}",
            f'{_kind(one)} <span class="doc">{escape(one.get("description", ""))}</span>',
        )
        for field, one in schema.get("properties", {}).items()
    ]
    about = f'<p class="doc">{escape(schema.get("description", ""))}</p>'
    return f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{about}{_table(rows)}</details>'


def _kind(schema: Mapping[str, Any]) -> str:
    """A schema in few words; bounds and defaults are named as in JSON Schema."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f'<a href="#{escape(name)}">{escape(name)}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if "enum" in schema:
        return " | ".join(f"<code>{escape(json.dumps(one))}</code>" for one in schema["enum"])
    bounds = {name: one for name, one in schema.items() if name not in ("type", "title", "description")}
    text = schema.get("type", "anything")
    return escape(f"{text} {json.dumps(bounds)}" if bounds else str(text))


def _table(rows: list[tuple[str, str]]) -> str:
    return f"<table>{''.join(f'<tr><td>{left}</td><td>{right}</td></tr>' for left, right in rows)}</table>"
