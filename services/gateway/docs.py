"""Shows the OpenAPI document as one page of HTML that loads nothing else."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

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


def page(document: Mapping[str, Any]) -> str:
    """Return an OpenAPI document as one page of HTML."""
    operations = [
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [_schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items())]
    return PAGE.format(
        title=escape(document["info"]["title"]),
        version=escape(document["info"]["version"]),
        operations="\n".join(operations),
        schemas="\n".join(schemas),
    )


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
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


def _schema(name: str, schema: Mapping[str, Any]) -> str:
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
