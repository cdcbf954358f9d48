"""A checkpoint's chat template: it turns messages into the prompt, in a sandbox, as transformers does."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from livescale.services.gateway.conversation import ChatMessage, ToolCall

LONGEST_SOURCE = 1 << 18

Wall = Callable[[], float]


class TemplateRefusal(Exception):
    """The template does not accept these messages, or is broken. The message says why."""


class RenderingWay(msgspec.Struct, frozen=True):
    """How a conversation becomes a prompt: with these variables for the template, and either the assistant's turn
    begun or the last message left open."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = {}


USUAL = RenderingWay()


class ChatTemplate:
    """A Jinja template of a checkpoint or a client. `special_tokens` are its `bos_token`, `eos_token` and so on.

    A template is a program: `render` bounds neither its time nor its memory, so it is called in a process of its own.
    Raises TemplateRefusal where the source is not a template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], wall: Wall) -> None:
        if len(source) > LONGEST_SOURCE:
            raise TemplateRefusal(f"the chat template is longer than {LONGEST_SOURCE} characters")
        self.source = source
        self.special_tokens = dict(special_tokens)
        self.condemned = False  # whether it was found not to render within its bounds
        self._environment = _environment(wall)
        self._template: jinja2.Template | None = None
        try:
            self._environment.parse(source)
        except (jinja2.TemplateError, RecursionError, MemoryError) as error:
            raise TemplateRefusal(f"the chat template cannot be compiled: {_why(error)}") from None

    def render(self, messages: list[ChatMessage], way: RenderingWay = USUAL) -> str:
        """The prompt of a conversation. Raises TemplateRefusal."""
        try:
            self._template = self._template or self._environment.from_string(self.source)
            plain = [_plain(message) for message in messages]
            variables = {"tools": None, "documents": None, **self.special_tokens, **way.variables}
            variables |= {"messages": plain, "add_generation_prompt": way.add_generation_prompt}
            prompt = self._template.render(variables)
            return _open(prompt, plain[-1]["content"]) if way.continue_final_message else prompt
        # A template is a program, and its mistakes show as one of these.
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise TemplateRefusal(_why(error)) from None
        except (RecursionError, MemoryError, SyntaxError) as error:
            raise TemplateRefusal(_why(error)) from None


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


def _plain(message: ChatMessage) -> dict[str, Any]:
    """The message as templates expect it: with text as content, and arguments of calls as objects."""
    reasoning = message.reasoning_content if message.reasoning is None else message.reasoning
    optional = {
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": reasoning,
        "tool_calls": [_called(call) for call in message.tool_calls] or None,
    }
    return {"role": str(message.role), "content": message.text} | {
        name: value for name, value in optional.items() if value is not None
    }


def _called(call: ToolCall) -> dict[str, Any]:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise TemplateRefusal(f"the arguments of {call.function.name} are not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise TemplateRefusal(f"the arguments of {call.function.name} are not a JSON object")
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


def _open(prompt: str, final: str) -> str:
    """The prompt up to the end of its last message, as in transformers. A template may have stripped that."""
    bare = final.strip()
    start = prompt.rfind(bare)
    if not bare or start < 0:
        raise TemplateRefusal("the last message cannot be continued, as it is not in the prompt")
    whole = final.lstrip()
    return prompt[: start + len(whole if prompt.startswith(whole, start) else bare)]


class GenerationTag(Extension):
    """Ignores `{% generation %}`, which marks what the assistant said for training, and means nothing for prompts."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(wall: Wall) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )

    def strftime_now(format: str) -> str:
        return datetime.fromtimestamp(wall(), tz=UTC).astimezone().strftime(format)

    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:  # noqa: ANN401
    """Write JSON without escaping it for HTML, which Jinja's own filter does."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
