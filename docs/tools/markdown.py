"""Options, fields and tables as Markdown."""

import inspect
import json
from collections.abc import Iterable, Sequence

import click

from docs.tools.described import Document

BOUNDS = {
    **{"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"},
    **{"minLength": "at least", "maxLength": "at most", "minItems": "at least", "maxItems": "at most"},
}


def page(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cell(each) for each in line)} |" for line in lines)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    return f"`{text}`"


def fenced(text: str) -> str:
    return f"```text\n{text}\n```"


def clean(text: str) -> str:
    return inspect.cleandoc(text).replace("\b\n", "").replace("\b", "").strip()


def anchor(path: Sequence[str]) -> str:
    return "-".join(path)


def as_json(document: Document) -> str:
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def flag(option: click.Option) -> str:
    return ", ".join((*option.opts, *option.secondary_opts))


def shown_variable(option: click.Option) -> str:
    names = [option.envvar] if isinstance(option.envvar, str) else option.envvar or ()
    return ", ".join(code(each) for each in names)


def shown_type(option: click.Option) -> str:
    match option.type:
        case click.Choice(choices=choices):
            return ", ".join(code(str(each)) for each in choices)
        case click.IntRange() | click.FloatRange() as limited:
            low = [] if limited.min is None else [f"{'>' if limited.min_open else '>='} {limited.min}"]
            high = [] if limited.max is None else [f"{'<' if limited.max_open else '<='} {limited.max}"]
            return " ".join((limited.name.removesuffix(" range"), ", ".join((*low, *high))))
    return "yes or no" if option.is_flag else option.type.name


def shown_default(option: click.Option) -> str:
    default = option.default
    if default is None or callable(default) or default in ("", ()) or "Sentinel" in type(default).__name__:
        return ""
    if isinstance(default, list | tuple):
        return ", ".join(code(str(each)) for each in default)
    return code(str(default).lower() if isinstance(default, bool) else str(default))


def field_table(schema: Document) -> str:
    required = schema.get("required", ())
    rows = [
        (code(name), kind_of(kind), bounds_of(kind), "yes" if name in required else "", kind.get("description", ""))
        for name, kind in schema.get("properties", {}).items()
    ]
    return table(("field", "type", "bounds", "required", "meaning"), rows)


def kind_of(schema: Document) -> str:
    match schema:
        case {"$ref": str(ref)}:
            return ref.rsplit("/", 1)[1]
        case {"anyOf": list(kinds)}:
            return " or ".join(kind_of(each) for each in kinds)
        case {"enum": list(values)}:
            return ", ".join(code(str(each)) for each in values)
        case {"prefixItems": list(kinds)}:
            return f"({', '.join(kind_of(each) for each in kinds)})"
        case {"type": "array"}:
            return f"list of {kind_of(schema.get('items', {}))}"
        case {"type": "object", "additionalProperties": dict(kind)}:
            return f"map to {kind_of(kind)}"
    return str(schema.get("type", "anything"))


def bounds_of(schema: Document) -> str:
    own = [f"{sign} {schema[word]}" for word, sign in BOUNDS.items() if word in schema]
    own += [bounds_of(each) for each in schema.get("anyOf", ())]
    return ", ".join(each for each in own if each)


def resolve(schema: Document, document: Document) -> Document:
    if "$ref" not in schema:
        return schema
    found: Document = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return found
