"""What the code says of itself when it is imported: commands, endpoints, subjects and messages."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, get_args
from unittest.mock import MagicMock

import click
import msgspec

import livescale.services.gateway
import livescale.shared.messages
from livescale.shared import subjects
from livescale.shared.bus.contract import Call, Topic
from livescale.shared.messages.message import Message

Document = dict[str, Any]
Commands = Sequence[tuple[tuple[str, ...], click.Command, click.Context]]


def walk_commands(
    command: click.Command, ctx: click.Context, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    yield path, command, ctx
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            # With the command's own settings: click remembers in a command which help option it was first asked for.
            inner = click.Context(below, info_name=name, parent=ctx, **below.context_settings)
            yield from walk_commands(below, inner, (*path, name))


def has_settings(command: click.Command) -> bool:
    """Whether its options are a settings struct: flags, variables and keys of a file at once."""
    return any(param.name == "print_config" for param in command.params)


def describe_rest() -> Document:
    """The OpenAPI document, with keys, made without a running gateway."""
    make = find_function(livescale.services.gateway, "operations")
    describe = find_function(livescale.services.gateway, "describe")
    stand_ins = (MagicMock() for _ in make.__annotations__.keys() - {"return"})
    document: Document = describe(make(*stand_ins), with_key=True)
    return document


def find_function(package: ModuleType, name: str) -> Callable[..., Any]:
    """The function of this name that is defined in one of the package's modules."""
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        # A package's own modules name what they import from each other; only the one that defines it counts.
        if re.search(rf"^def {name}\(", source_of(package, module.name), flags=re.MULTILINE):
            found: Callable[..., Any] = getattr(importlib.import_module(module.name), name)
            return found
    raise LookupError(f"{package.__name__} has no function {name}")


def source_of(package: ModuleType, name: str) -> str:
    path = Path(package.__path__[0]) / name.rsplit(".", 1)[1]
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()


def calls() -> list[tuple[str, Call[Any, Any]]]:
    return [(name, each) for name, each in vars(subjects).items() if isinstance(each, Call)]


def topics() -> list[tuple[str, Topic[Any]]]:
    return [(name, each) for name, each in vars(subjects).items() if isinstance(each, Topic)]


def message_types(topic: Topic[Any]) -> tuple[type[Message], ...]:
    return get_args(topic.type) or (topic.type,)


def names_of(topic: Topic[Any]) -> str:
    return " or ".join(kind.__name__ for kind in message_types(topic))


def all_messages() -> list[type[Message]]:
    """All that is said on the bus, or is part of it. What benches tell their own processes over pipes is not."""
    for module in pkgutil.iter_modules(livescale.shared.messages.__path__, "livescale.shared.messages."):
        importlib.import_module(module.name)
    ours = (each for each in below(Message) if each.__module__.startswith(("livescale.services.", "livescale.shared.")))
    return sorted(ours, key=lambda each: each.__name__)


def below(kind: type[Message]) -> Iterator[type[Message]]:
    for each in kind.__subclasses__():
        yield each
        yield from below(each)


def message_schema(ref: str = "#/$defs/{name}") -> Document:
    _, definitions = msgspec.json.schema_components(all_messages(), ref_template=ref)
    # A docstring's later lines are indented, which Markdown would take for code.
    for each in definitions.values():
        if "description" in each:
            each["description"] = inspect.cleandoc(each["description"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "livescale's messages",
        "$defs": dict(sorted(definitions.items())),
    }


def asyncapi() -> Document:
    """AsyncAPI 3.0: a channel for each subject, an operation for each call and topic."""
    schemas = message_schema("#/components/schemas/{name}")["$defs"]
    channels: Document = {}
    operations: Document = {}
    json_alone = {kind.__name__ for kind in only_json()}
    for name, call in calls():
        channels[name] = channel(call.pattern, [call.request], "json or msgpack")
        channels[f"{name}.reply"] = {"address": None, "messages": references([call.reply])}
        operations[name] = {
            "action": "receive",
            "summary": call.doc,
            "channel": {"$ref": f"#/channels/{name}"},
            "reply": {"channel": {"$ref": f"#/channels/{name}.reply"}},
        }
    for name, topic in topics():
        channels[name] = channel(topic.pattern, message_types(topic), "json" if topic.json else "msgpack")
        operations[name] = {"action": "send", "channel": {"$ref": f"#/channels/{name}"}}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "livescale's bus", "version": "1", "license": {"name": "Apache-2.0"}},
        "defaultContentType": "application/msgpack",
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": {
                name: {
                    "payload": {"$ref": f"#/components/schemas/{name}"},
                    **({"contentType": "application/json"} if name in json_alone else {}),
                }
                for name in schemas
            },
            "schemas": schemas,
        },
    }


def only_json() -> set[type[Message]]:
    """Messages of topics in JSON; those that also travel in another encoding are left out."""
    told = [(topic.json, set(message_types(topic))) for _, topic in topics()]
    asked = {kind for _, call in calls() for kind in (call.request, call.reply)}
    in_json = set[type[Message]]().union(*(kinds for is_json, kinds in told if is_json))
    return in_json.difference(asked, *(kinds for is_json, kinds in told if not is_json))


def channel(pattern: str, kinds: Iterable[type[Message]], encoding: str) -> Document:
    return {
        "address": f"livescale.{{namespace}}.{pattern}",
        "parameters": {hole: {} for hole in ("namespace", *re.findall(r"{(\w+)}", pattern))},
        "messages": references(kinds),
        "x-encoding": encoding,
    }


def references(kinds: Iterable[type[Message]]) -> Document:
    return {kind.__name__: {"$ref": f"#/components/messages/{kind.__name__}"} for kind in kinds}
