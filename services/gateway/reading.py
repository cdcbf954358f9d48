"""How the answers of one chat are read: which formats its model writes, and what its client is told. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from livescale.services.gateway.bodies import ChatRequest
from livescale.services.gateway.chat_template import ChatTemplate
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.output import Output
from livescale.services.gateway.parsed_output import ParsedOutput, Telling, call_ids
from livescale.services.gateway.tool_calls.formats import (
    CALLS,
    HARMONY,
    MISTRAL,
    OPENED,
    REASONING,
    calls_of_template,
    reasoning_of_template,
)
from livescale.services.gateway.tool_calls.machine import Blanks, Format, Machine, markers
from livescale.services.gateway.tool_calls.message import Calls, ParameterTypes
from livescale.services.gateway.tools import NamedTool, parameter_types
from livescale.shared.messages.parameters import ModelSpec

NO_GRAMMAR = "Answers cannot be held to a form yet"


@dataclass(frozen=True)
class Reading:
    """The formats by which answers are read, one after the other. `types` are those of the tools' parameters. The
    prompt may have `opened` the reasoning. Ids of calls are made from `origin`."""

    formats: tuple[Format, ...]
    types: ParameterTypes
    telling: Telling
    origin: str
    opened: bool = False

    @property
    def markers(self) -> frozenset[str]:
        """The markers of all formats."""
        return frozenset().union(*map(markers, self.formats))

    def after(self, prompt: str) -> "Reading":
        """The same after a prompt, which may end where the reasoning begins."""
        begin = self.formats[0].get(OPENED)
        opened = isinstance(begin, Blanks) and prompt.rstrip().endswith(begin.marks[0].text)
        return replace(self, opened=opened)

    def output(self, text: Output, prompt: Sequence[int], choice: int) -> ParsedOutput:
        """What reads one choice of the answer."""
        ids = call_ids(self.origin, prompt, choice, short=MISTRAL in self.formats)
        machines = [Machine(format, Calls(self.types, ids)) for format in self.formats]
        if self.opened:
            machines[0].state = OPENED
        return ParsedOutput(text, machines, self.telling)


def reading_of(body: ChatRequest, spec: ModelSpec, template: ChatTemplate | None, origin: str) -> Reading | None:
    """How the answers to a request are read; None where they are text. Raises ApiError 400 where the request offers
    tools, and how the model calls them is not known."""
    source = "" if template is None else template.source
    said = spec.reasoning_parser or reasoning_of_template(source) or "none"
    reasoning = REASONING.get(said)
    calls = _calls_of(body, spec, source) if body.tools and body.tool_choice != "none" else None
    if HARMONY in (calls, reasoning):
        formats: tuple[Format, ...] = (HARMONY,)
    else:
        formats = tuple(one for one in (reasoning, calls) if one is not None)
    if not formats:
        return None
    telling = Telling(several=body.parallel_tool_calls, shown=body.include_reasoning)
    return Reading(formats, parameter_types(body.tools or []), telling, origin)


def _calls_of(body: ChatRequest, spec: ModelSpec, source: str) -> Format:
    format = CALLS.get(spec.tool_call_parser or calls_of_template(source) or "none")
    if format is None:
        raise bad_request(
            "How this model calls tools is not known from its chat template; its operator may set tool_call_parser.",
            "tools",
        )
    if body.tool_choice == "required" or isinstance(body.tool_choice, NamedTool):
        raise bad_request(
            f'{NO_GRAMMAR}, so no model can be made to call a tool; use "auto".',
            "tool_choice",
            code="unsupported_parameter",
        )
    for index, tool in enumerate(body.tools or []):
        if tool.function.strict:
            raise bad_request(
                f"{NO_GRAMMAR}, so arguments may not follow their schema; leave out 'strict'.",
                f"tools[{index}].function.strict",
                code="unsupported_parameter",
            )
    return format
