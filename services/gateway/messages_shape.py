"""How pieces of an answer become Anthropic's message, and the events of its stream. Pure."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from livescale.services.gateway.envelope import Envelope, Usage
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.output import StopReason, TextPiece, WholeChoice
from livescale.services.gateway.tool_calls.message import CallDelta

MessageStop = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class MessageError(msgspec.Struct, frozen=True):
    """What went wrong, with Anthropic's type of the error."""

    type: str
    message: str


class MessageErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an answer with a status of 400 or more, and the last event of a stream that failed."""

    type: Literal["error"] = "error"
    error: MessageError


class MessageUsage(msgspec.Struct, frozen=True):
    """The numbers of tokens. What was read from the prefix cache is not among the input's."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class ThinkingContent(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """What the model thought before it answered."""

    thinking: str
    signature: str = ""


class TextContent(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A block of the answer: what the model says."""

    text: str
    citations: None = None


class ToolUseContent(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A block of the answer: a tool that the model calls, with its input."""

    id: str
    name: str
    input: dict[str, Any]


Content = ThinkingContent | TextContent | ToolUseContent


# It has Anthropic's name, which clients read in the OpenAPI document. What goes over the bus is another `Message`.
class Message(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /v1/messages: the model's message and its usage."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Content] = []
    stop_reason: MessageStop | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class MessageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stream. Its `type` says which of the other fields it has."""

    type: str
    message: Message | UnsetType = UNSET
    index: int | UnsetType = UNSET
    content_block: Content | UnsetType = UNSET
    delta: dict[str, str | None] | UnsetType = UNSET
    usage: MessageUsage | UnsetType = UNSET


class TokenCount(msgspec.Struct, frozen=True):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: int


class MessagesShape:
    """Makes the objects of one /v1/messages, streamed and whole. A stream's blocks follow one another."""

    prefix = "msg"

    def __init__(self) -> None:
        self._blocks = 0
        self._open = ""  # what the last block is, while it is open
        self._calls = False
        self._ended: TextPiece | None = None

    def chunks(
        self, envelope: Envelope, index: int, piece: TextPiece, prompt: list[int] | None
    ) -> list[msgspec.Struct]:
        events: list[MessageEvent] = []
        if prompt is not None:
            usage = MessageUsage(len(prompt), 0) if envelope.so_far is None else _usage(envelope.so_far)
            begun = Message(id=envelope.id, model=envelope.model, usage=msgspec.structs.replace(usage, output_tokens=0))
            events.append(MessageEvent(type="message_start", message=begun))
        if piece.reasoning:
            events += self._begin("thinking", ThinkingContent(""))
            events.append(self._delta("thinking_delta", "thinking", piece.reasoning))
        if piece.text:
            events += self._begin("text", TextContent(""))
            events.append(self._delta("text_delta", "text", piece.text))
        for call in piece.calls:
            events += self._call(call)
        if piece.finish_reason is not None:
            self._ended = piece
            events += self._close()
        return list(events)

    def ending(self, envelope: Envelope, usage: Usage) -> list[msgspec.Struct]:
        assert self._ended is not None
        reason, sequence = stop_of(self._ended.finish_reason or "stop", self._ended.stop_reason, calls=self._calls)
        delta: dict[str, str | None] = {"stop_reason": reason, "stop_sequence": sequence}
        return [
            MessageEvent(type="message_delta", delta=delta, usage=_usage(usage)),
            MessageEvent(type="message_stop"),
        ]

    def whole(self, envelope: Envelope, choices: list[WholeChoice], usage: Usage) -> Message:
        [choice] = choices
        calls = [call for pieces in choice.calls if (call := _whole_call(pieces)) is not None]
        content: list[Content] = [ThinkingContent(choice.reasoning)] if choice.reasoning else []
        if choice.text:
            content.append(TextContent(choice.text))
        reason, sequence = stop_of(choice.finish_reason, choice.stop_reason, calls=bool(choice.calls))
        return Message(
            id=envelope.id,
            model=envelope.model,
            content=[*content, *calls],
            stop_reason=reason,
            stop_sequence=sequence,
            usage=_usage(usage),
        )

    def _call(self, call: CallDelta) -> list[MessageEvent]:
        events = []
        if call.id is not None:
            self._calls = True
            events = [*self._close(), *self._begin("tool_use", ToolUseContent(call.id, call.name or "", {}))]
        if call.arguments:
            events.append(self._delta("input_json_delta", "partial_json", call.arguments))
        return events

    def _begin(self, kind: str, block: Content) -> list[MessageEvent]:
        if self._open == kind:
            return []
        events = self._close()
        self._open = kind
        self._blocks += 1
        return [*events, MessageEvent(type="content_block_start", index=self._blocks - 1, content_block=block)]

    def _close(self) -> list[MessageEvent]:
        if not self._open:
            return []
        self._open = ""
        return [MessageEvent(type="content_block_stop", index=self._blocks - 1)]

    def _delta(self, kind: str, name: str, text: str) -> MessageEvent:
        return MessageEvent(type="content_block_delta", index=self._blocks - 1, delta={"type": kind, name: text})


def stop_of(reason: StopReason, stop: int | str | None, *, calls: bool) -> tuple[MessageStop, str | None]:
    """Why a message ended, and the stop sequence that ended it."""
    if reason == "length":
        return "max_tokens", None
    if isinstance(stop, str):
        return "stop_sequence", stop
    return ("tool_use" if calls else "end_turn"), None


def message_error(error: ApiError) -> MessageErrorBody:
    """An error as Anthropic's clients understand it."""
    kind = ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return MessageErrorBody(error=MessageError(kind, str(error)))


def _usage(usage: Usage) -> MessageUsage:
    cached = usage.prompt_tokens_details.cached_tokens
    return MessageUsage(usage.prompt_tokens - cached, usage.completion_tokens, cached)


def _whole_call(pieces: list[CallDelta]) -> ToolUseContent | None:
    """The call, None where its arguments were cut off: nobody could follow it."""
    try:
        given = msgspec.json.decode("".join(piece.arguments for piece in pieces), type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
    return ToolUseContent(pieces[0].id or "", pieces[0].name or "", given)
