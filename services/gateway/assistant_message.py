"""The message that a model has generated, as clients of chats get it: whole, and in pieces. Pure."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from livescale.services.gateway.output import TextPiece, WholeChoice
from livescale.services.gateway.tool_calls.message import CallDelta


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    """The tool that is called, and a JSON object of arguments as text; in a stream pieces of it."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class MessageToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool, as an answer's message has it."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message that the model has generated. Its content is null where there are only calls, or reasoning. What no
    model here says is null, as clients look for it."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    reasoning: str | None = None
    tool_calls: list[MessageToolCall] | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the call with this index; the first one has id, type and name."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionCall


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of the message; the first one has the role."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


def delta_of(piece: TextPiece) -> ChatDelta:
    """The part of a message that a piece of the answer is."""
    if not piece.reasoning and not piece.calls:
        return ChatDelta(content=piece.text)
    return ChatDelta(
        content=piece.text or UNSET,
        reasoning=piece.reasoning or UNSET,
        tool_calls=[_call_delta(call) for call in piece.calls] or UNSET,
    )


def _call_delta(call: CallDelta) -> ToolCallDelta:
    if call.id is None:
        return ToolCallDelta(index=call.index, function=FunctionCall(arguments=call.arguments))
    named = FunctionCall(name=call.name or "", arguments=call.arguments)
    return ToolCallDelta(index=call.index, id=call.id, type="function", function=named)


def message_of(choice: WholeChoice) -> AssistantMessage:
    """Return the whole message once the answer has ended."""
    told_apart = choice.reasoning or choice.calls
    return AssistantMessage(
        content=None if told_apart and not choice.text else choice.text,
        reasoning=choice.reasoning or None,
        tool_calls=[_call(pieces) for pieces in choice.calls] or UNSET,
    )


def _call(pieces: list[CallDelta]) -> MessageToolCall:
    arguments = "".join(piece.arguments for piece in pieces)
    return MessageToolCall(id=pieces[0].id or "", function=FunctionCall(name=pieces[0].name or "", arguments=arguments))
