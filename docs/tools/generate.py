"""The reference, made from the code: run `python -m docs.tools.generate` after changing a flag, an endpoint, a message,
a subject, a metric or a log event. A test says when a page is out of date.

What is documented is found by what it is (a command, a subject, a message, a call that declares a metric) and not by
the module in which it lies, so that code can move without a change here.
"""

import re
import sys
from pathlib import Path

import click

from docs.tools.declared import find_logs, find_metrics
from docs.tools.described import (
    Commands,
    Document,
    asyncapi,
    calls,
    describe_rest,
    has_settings,
    message_schema,
    message_types,
    names_of,
    topics,
    walk_commands,
)
from docs.tools.markdown import (
    anchor,
    as_json,
    bounds_of,
    clean,
    code,
    fenced,
    field_table,
    flag,
    kind_of,
    page,
    resolve,
    shown_default,
    shown_type,
    shown_variable,
    table,
)
from docs.tools.parameters import parameters
from livescale.services.cli.main import cli
from livescale.shared.model.architectures import find_architecture, model_types

OUT = Path(__file__).parents[1] / "reference"
PREFIX = "livescale.<namespace>."
MADE = "<!-- Made by docs/tools/generate.py; do not edit. -->"
LIMITING = re.compile(r"(^|-)(max|min|most|least|bytes|timeout|seconds|grace|look-ahead|stream-queue)(-|$)")


def make_pages() -> dict[str, str]:
    """All pages by file name."""
    ctx = click.Context(cli, info_name="livescale", **cli.context_settings)
    commands = list(walk_commands(cli, ctx, ("livescale",)))
    rest = describe_rest()
    return {
        "command-line.md": command_line(commands),
        "settings.md": settings(commands),
        "rest.md": rest_page(rest),
        "parameters.md": parameters(rest),
        "openapi.json": as_json(rest),
        "metrics.md": metrics(),
        "bus.md": bus(),
        "asyncapi.json": as_json(asyncapi()),
        "messages.schema.json": as_json(message_schema()),
        "events.md": events(),
        "limits.md": limits(commands, rest),
        "models.md": models(),
    }


def command_line(commands: Commands) -> str:
    parts = ["# Command line", MADE, "Options that are settings too are on the page [settings](settings.md)."]
    for path, command, ctx in commands:
        parts.append(f"## {' '.join(path)}")
        parts.append(fenced(command.get_usage(ctx).removeprefix("Usage: ")))
        parts.append(fenced(clean(command.help or "")) if "\b" in (command.help or "") else clean(command.help or ""))
        if isinstance(command, click.Group):
            below = [(code(name), help_of(command, ctx, name)) for name in command.list_commands(ctx)]
            parts.append(table(("command", "what it does"), below))
        elif has_settings(command):
            parts.append(f"Options: [settings of `{' '.join(path)}`](settings.md#{anchor(path)}).")
        else:
            options = [param for param in command.params if isinstance(param, click.Option)]
            rows = [
                (code(flag(one)), shown_variable(one), shown_type(one), shown_default(one), one.help or "")
                for one in options
            ]
            parts.append(table(("option", "variable", "value", "default", "meaning"), rows))
        if command.epilog:
            parts.append(fenced(clean(command.epilog)))
    return page(parts)


def help_of(group: click.Group, ctx: click.Context, name: str) -> str:
    below = group.get_command(ctx, name)
    return "" if below is None else below.get_short_help_str(limit=120)


def settings(commands: Commands) -> str:
    parts = [
        "# Settings",
        MADE,
        "Each setting is a flag, an environment variable, and a key of the file given by `--config`. A flag counts "
        "before the environment, the environment before the file.",
    ]
    for path, command, _ in commands:
        if not has_settings(command):
            continue
        parts.append(f"## {' '.join(path)}")
        rows = [
            (code(flag(each)), shown_variable(each), shown_type(each), shown_default(each), each.help or "")
            for each in command.params
            if isinstance(each, click.Option) and each.name not in ("print_config", "config")
        ]
        parts.append(table(("flag", "variable", "value", "default", "meaning"), rows))
    return page(parts)


def rest_page(document: Document) -> str:
    parts = [
        "# REST",
        MADE,
        "The whole document is [openapi.json](openapi.json). A running gateway serves it at `/openapi.json`, and as a "
        "page at `/docs`.",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts += [f"## {method.upper()} {path}", f"{operation['summary']}."]
            parts.append(", ".join(answer_of(status, each) for status, each in operation["responses"].items()) + ".")
            rows = [(code(each["name"]), each["in"], each.get("description", "")) for each in operation["parameters"]]
            parts.append(table(("parameter", "in", "meaning"), rows))
            if "requestBody" in operation:
                body = operation["requestBody"]["content"]["application/json"]["schema"]
                parts += [f"Body: {kind_of(body)}.", field_table(resolve(body, document))]
    parts.append("## Objects")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += [f"### {name}", schema.get("description", ""), field_table(schema)]
    return page(parts)


def answer_of(status: str, answer: Document) -> str:
    kinds = {f"{kind_of(each['schema'])} ({media})" for media, each in answer["content"].items()}
    return f"{status}: {' or '.join(sorted(kinds))}"


def metrics() -> str:
    rows = sorted({(code(name), kind, ", ".join(labels), doc) for name, kind, labels, doc in find_metrics()})
    head = (
        "Each process has its own at `GET /metrics` of its system port; a gateway has them at its own port too. "
        "`livescale metrics`, and `GET /metrics/all` of a gateway, gather those of all processes. Counters end in "
        "`_total`."
    )
    return page(["# Metrics", MADE, head, table(("name", "kind", "labels", "meaning"), rows)])


def bus() -> str:
    parts = [
        "# Bus: subjects and messages",
        MADE,
        f"Subjects begin with `{PREFIX}`. Calls are answered in JSON or msgpack, as they were asked. The whole "
        "contract is [asyncapi.json](asyncapi.json) (AsyncAPI 3). Messages alone are in "
        "[messages.schema.json](messages.schema.json) (JSON Schema).",
        "## Calls",
        table(
            ("subject", "question", "answer", "meaning"),
            [(code(each.pattern), each.request.__name__, each.reply.__name__, each.doc) for _, each in calls()],
        ),
        "## One-way",
        table(
            ("subject", "message", "encoding"),
            [(code(each.pattern), names_of(each), "JSON" if each.json else "msgpack") for _, each in topics()],
        ),
        "## Messages",
    ]
    definitions = message_schema()["$defs"]
    for name in sorted(definitions):
        parts += [f"### {name}", definitions[name].get("description", ""), field_table(definitions[name])]
    return page(parts)


def models() -> str:
    described = [(name, find_architecture(name)) for name in model_types()]
    rows = [(code(name), one.serves, code(one.class_name)) for name, one in described if one is not None]
    said = "`livescale check DIRECTORY` says whether a checkpoint will be served, and what it needs."
    return page(["# Models", MADE, said, table(("`model_type`", "what people run", "class in `config.json`"), rows)])


def events() -> str:
    definitions = message_schema()["$defs"]
    parts = [
        "# Events",
        MADE,
        "## On the bus",
        "Events are JSON, and where the server has JetStream it keeps them for a day. "
        "`livescale tap --subject 'evt.>'` prints them.",
    ]
    for _, topic in topics():
        if topic.pattern.startswith("evt."):
            [name] = (kind.__name__ for kind in message_types(topic))
            parts += [f"### {topic.pattern}", definitions[name].get("description", ""), field_table(definitions[name])]
    rows = [(code(name), ", ".join(sorted(levels)), ", ".join(sorted(names))) for name, (levels, names) in find_logs()]
    parts += ["## In the logs", table(("event", "level", "fields"), rows)]
    return page(parts)


def limits(commands: Commands, rest: Document) -> str:
    rows = [
        (" ".join(path[1:]), code(flag(each)), shown_type(each), shown_default(each), each.help or "")
        for path, command, _ in commands
        if path[1:2] in (("up",), ("run",)) and has_settings(command)
        for each in command.params
        if isinstance(each, click.Option) and each.name and LIMITING.search(each.name.replace("_", "-"))
    ]
    bodies = [
        (code(f"{name}.{field}"), bounds)
        for name, schema in sorted(rest["components"]["schemas"].items())
        if name.endswith("Request")
        for field, kind in schema.get("properties", {}).items()
        if (bounds := bounds_of(kind))
    ]
    parts = [
        "# Limits",
        MADE,
        "## Settings that limit",
        table(("of", "flag", "value", "default", "meaning"), rows),
        "## Fields of requests",
        table(("field", "bounds"), bodies),
    ]
    return page(parts)


def main() -> None:
    """Write all pages; with --check only say which are out of date."""
    check, stale = "--check" in sys.argv[1:], []
    OUT.mkdir(exist_ok=True)
    for name, text in make_pages().items():
        path = OUT / name
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not check:
                path.write_text(text)
    for name in stale:
        sys.stdout.write(f"{name} {'is out of date: run python -m docs.tools.generate' if check else 'written'}\n")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
