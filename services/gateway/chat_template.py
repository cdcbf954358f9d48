"""A checkpoint's chat template: it turns messages into the prompt, in a sandbox, as transformers does."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from livescale.services.gateway.bodies import ChatMessage

LONGEST_SOURCE = 1 << 18

Wall = Callable[[], float]


class TemplateRefusal(Exception):
    """The template does not accept these messages, or is broken. The message says why."""


class ChatTemplate:
    """A Jinja template from a checkpoint. `special_tokens` are its `bos_token`, `eos_token` and so on.

    A template is a program: `render` bounds neither its time nor its memory, so it is called in a process of its own.
    Raises TemplateRefusal where the source is not a template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], wall: Wall) -> None:
        if len(source) > LONGEST_SOURCE:
            raise TemplateRefusal(f"the checkpoint's chat template is longer than {LONGEST_SOURCE} characters")
        self.source = source
        self.special_tokens = dict(special_tokens)
        self.condemned = False  # whether it was found not to render within its bounds
        self._environment = _environment(wall)
        self._template: jinja2.Template | None = None
        try:
            self._environment.parse(source)
        except (jinja2.TemplateError, RecursionError, MemoryError) as error:
            raise TemplateRefusal(f"the checkpoint's chat template cannot be compiled: {_why(error)}") from None

    def render(self, messages: list[ChatMessage], add_generation_prompt: bool = True) -> str:
        """The prompt of a conversation. Raises TemplateRefusal."""
        try:
            self._template = self._template or self._environment.from_string(self.source)
            return self._template.render(
                messages=[_plain(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self.special_tokens,
            )
        # A template is a program, and its mistakes show as one of these.
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise TemplateRefusal(_why(error)) from None
        except (RecursionError, MemoryError, SyntaxError) as error:
            raise TemplateRefusal(_why(error)) from None


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


def _plain(message: ChatMessage) -> dict[str, str]:
    content = message.content
    text = content if isinstance(content, str) else "\n".join(part.text for part in content or [])
    plain = {"role": str(message.role), "content": text}
    return plain if message.name is None else {**plain, "name": message.name}


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
