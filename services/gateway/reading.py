"""How the answers of one chat are read: which formats its model writes, what form they are held to, and what the client
is told of them. Pure."""

from dataclasses import replace

from livescale.services.gateway.bodies import ChatRequest
from livescale.services.gateway.checkpoint_text import CheckpointText
from livescale.services.gateway.constraints import Constraint, check_company, constraint_of
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.parsed_output import Reading, Telling
from livescale.services.gateway.tool_calls.formats import (
    ARGUMENTS,
    CALL_LIST,
    CALLS,
    HARMONY,
    HERMES,
    MISTRAL,
    OPENED,
    REASONING,
    THINK,
    calls_of_template,
    reasoning_of_template,
)
from livescale.services.gateway.tool_calls.machine import Blanks, Format
from livescale.services.gateway.tool_grammars import MARKERS, Thoughts, ToolGrammars
from livescale.services.gateway.tools import NamedTool, Tool, parameter_types
from livescale.shared.messages.model_spec import ModelSpec


def reading_of(body: ChatRequest, spec: ModelSpec, text: CheckpointText, origin: str, prompt: str) -> Reading | None:
    """How the answers to a prompt are read; None where they are text. Raises ApiError 400 where the request offers
    tools and how the model calls them is not known, or where tools do not go with other parameters."""
    tools = body.tools if body.tools and body.tool_choice != "none" else []
    forced = bool(tools) and body.tool_choice not in (None, "auto")
    form = constraint_of(body)
    if form is not None and forced:
        raise bad_request(
            "'tool_choice' makes the answer a call, so it goes with no other form; leave out one of them.",
            "tool_choice",
        )
    if form is not None and not tools:
        return None  # an answer of that form has neither reasoning nor calls
    own = "" if text.template is None else text.template.source
    source = body.chat_template or own
    thoughts = REASONING.get(spec.reasoning_parser or reasoning_of_template(source) or "none")
    calls = CALLS.get(spec.tool_call_parser or calls_of_template(source) or "none")
    telling = Telling(several=body.parallel_tool_calls, shown=body.include_reasoning)
    opened = thoughts is not None and _is_opened(thoughts, prompt)
    read = Reading((), parameter_types(tools), telling, origin, opened, short_ids=calls is MISTRAL)
    if forced:
        return _forced(read, body, tools, text, thoughts)
    if tools and calls is None:
        raise bad_request(
            "How this model calls tools is not known from its chat template; its operator may set tool_call_parser.",
            "tools",
        )
    found = (thoughts, calls) if tools else (thoughts,)
    formats = (HARMONY,) if HARMONY in found else tuple(one for one in found if one is not None)
    if not formats:
        return None
    read = replace(read, formats=formats)
    if form is not None:
        return _formed(read, body, tools, text, form)
    return _strict(read, body, tools, text) if any(tool.function.strict for tool in tools) else read


def _is_opened(format: Format, prompt: str) -> bool:
    """Whether the prompt ends where the reasoning begins."""
    begin = format.get(OPENED)
    return isinstance(begin, Blanks) and prompt.rstrip().endswith(begin.marks[0].text)


def _forced(
    read: Reading, body: ChatRequest, tools: list[Tool], text: CheckpointText, thoughts: Format | None
) -> Reading:
    """Answers are calls in JSON, whatever the model's own format is; it may reason before."""
    last = CALL_LIST
    if isinstance(body.tool_choice, NamedTool):
        last = ARGUMENTS
        read = replace(read, named=body.tool_choice.function.name, telling=replace(read.telling, called="stop"))
    if thoughts is THINK:
        return _held(replace(read, formats=(THINK, last)), body, tools, text)
    return _held(replace(read, formats=(last,), opened=False), body, tools, text)


def _strict(read: Reading, body: ChatRequest, tools: list[Tool], text: CheckpointText) -> Reading:
    """Answers are free, and calls in them follow their schemas."""
    if read.formats not in ((HERMES,), (THINK, HERMES)):
        index = next(index for index, tool in enumerate(tools) if tool.function.strict)
        raise bad_request(
            "The calls of this model cannot be held to their schemas in free text; leave out 'strict', or say "
            "\"required\" in 'tool_choice'.",
            f"tools[{index}].function.strict",
            code="unsupported_parameter",
        )
    return _held(read, body, tools, text)


def _formed(read: Reading, body: ChatRequest, tools: list[Tool], text: CheckpointText, form: Constraint) -> Reading:
    """Answers are of that form, or calls."""
    if form.kind != "json" or read.formats not in ((HERMES,), (THINK, HERMES)):
        raise bad_request(
            f"{form.param!r} goes with 'tools' where it is JSON, and the model writes calls as Hermes does; here calls "
            "could not be told apart from the answer. Leave out one of them.",
            form.param,
            code="unsupported_parameter",
        )
    return _held(read, body, tools, text, form)


def _held(
    read: Reading, body: ChatRequest, tools: list[Tool], text: CheckpointText, form: Constraint | None = None
) -> Reading:
    """The same with a grammar, and a constraint by which it can be tried: that has no tokens. The `form` is that of
    answers without calls."""
    thoughts: Thoughts = "none"
    if THINK in read.formats:
        thoughts = "opened" if read.opened else "possible"
    plain = ToolGrammars(tools, thoughts, read.telling.several)
    tokens = {marker: text.added_tokens[marker] for marker in MARKERS if marker in text.added_tokens}
    param = "tools" if form is None else form.param
    constraint = Constraint(param, "grammar", _grammar(read, plain, form))
    check_company(body, constraint)
    return replace(read, constraint=constraint, grammar=_grammar(read, replace(plain, tokens=tokens), form))


def _grammar(read: Reading, grammars: ToolGrammars, form: Constraint | None) -> str:
    if form is not None:
        return grammars.of_calls_or(form.source)
    if read.named:
        return grammars.of_arguments(read.named)
    return grammars.of_calls() if CALL_LIST in read.formats else grammars.of_strict_calls()
