"""How pieces of text become the items of a response, the response itself, and its events. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from livescale.services.gateway.envelope import Envelope, Usage
from livescale.services.gateway.errors import ErrorDetail
from livescale.services.gateway.logprobs import ContentLogprob
from livescale.services.gateway.output import TextPiece, WholeChoice
from livescale.services.gateway.responses_objects import (
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputTokensDetails,
    ReasoningText,
    ResponseEvent,
    ResponseObject,
    ResponseUsage,
)
from livescale.services.gateway.responses_request import ResponsesRequest
from livescale.services.gateway.tool_calls.message import CallDelta


@dataclass(frozen=True)
class Told:
    """What a client is told of an item: the fields of an event of this kind."""

    kind: str
    fields: dict[str, Any]


class Items:
    """The items of one response, one after the other; the last may be open. `cut` says that tokens were not enough."""

    def __init__(self, response_id: str) -> None:
        self._name = response_id.partition("-")[2]
        self.done: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._texts: list[str] = []
        self._logprobs: list[ContentLogprob] = []
        self._held: list[ContentLogprob] = []
        self.cut = False

    def add(self, piece: TextPiece, envelope: Envelope) -> Iterator[Told]:
        """Add a piece of the answer, and tell what comes of it."""
        told: list[Told] = []
        if piece.reasoning:
            if not isinstance(self._open, OutputReasoning):
                told += self._begin(OutputReasoning(id=f"rs-{self._name}-{self._place}", status="in_progress"))
            told.append(self._delta("reasoning_text.delta", piece.reasoning, content_index=0))
        told += self._message(piece, envelope)
        for call in piece.calls:
            told += self._call(call)
        if piece.finish_reason is not None:
            self.cut = piece.finish_reason == "length"
            if self._open is None and not any(isinstance(one, OutputMessage | OutputCall) for one in self.done):
                told += self._begin_message()  # an answer says something, though it may be nothing
                self._logprobs = self._held
            told += self._close("incomplete" if self.cut else "completed")
        return iter(told)

    @property
    def _place(self) -> int:
        return len(self.done)

    def _message(self, piece: TextPiece, envelope: Envelope) -> list[Told]:
        """Go on with the message. Tokens whose text is held back are told with it, but not those of other items."""
        others = piece.reasoning or piece.calls or isinstance(self._open, OutputReasoning | OutputCall)
        if others and not piece.text:
            self._held = []
            return []
        told = envelope.chat_logprobs(piece)
        logprobs = [*self._held, *([] if told is None else told.content)]
        self._held = []
        if not piece.text and self._open is None:
            self._held = logprobs  # nobody knows yet what the text begins
            return []
        if not piece.text and not logprobs:
            return []
        begun = [] if isinstance(self._open, OutputMessage) else self._begin_message()
        self._logprobs += logprobs
        return [*begun, self._delta("output_text.delta", piece.text, content_index=0, logprobs=logprobs)]

    def _begin_message(self) -> list[Told]:
        id = f"msg-{self._name}" if self._place == 0 else f"msg-{self._name}-{self._place}"
        return self._begin(OutputMessage(id=id, status="in_progress"))

    def _call(self, call: CallDelta) -> list[Told]:
        told: list[Told] = []
        if call.id is not None:
            id = f"fc-{self._name}-{self._place + (self._open is not None)}"
            told = self._begin(OutputCall(id=id, call_id=call.id, name=call.name or "", status="in_progress"))
        if call.arguments:
            told.append(self._delta("function_call_arguments.delta", call.arguments))
        return told

    def _begin(self, item: OutputItem) -> list[Told]:
        told = self._close("completed")
        self._open, self._texts, self._logprobs = item, [], []
        told.append(Told("output_item.added", {"output_index": self._place, "item": item}))
        part = _empty_part(item)
        if part is not None:
            told.append(self._of_item("content_part.added", content_index=0, part=part))
        return told

    def _delta(self, kind: str, text: str, **fields: Any) -> Told:  # noqa: ANN401 fields of an event
        self._texts.append(text)
        return self._of_item(kind, delta=text, **fields)

    def _close(self, status: ItemStatus) -> list[Told]:
        """End the open item: say it as a whole."""
        item, text = self._open, "".join(self._texts)
        done: OutputItem
        match item:
            case None:
                return []
            case OutputCall():
                done = replace(item, status=status, arguments=text)
                told = [self._of_item("function_call_arguments.done", name=item.name, arguments=text)]
            case OutputReasoning():
                part = ReasoningText(text)
                done = replace(item, status=status, content=[part])
                told = [
                    self._of_item("reasoning_text.done", content_index=0, text=text),
                    self._of_item("content_part.done", content_index=0, part=part),
                ]
            case OutputMessage():
                said = OutputText(text=text, logprobs=self._logprobs)
                done = replace(item, status=status, content=[said])
                told = [
                    self._of_item("output_text.done", content_index=0, text=text, logprobs=self._logprobs),
                    self._of_item("content_part.done", content_index=0, part=said),
                ]
        told.append(Told("output_item.done", {"output_index": self._place, "item": done}))
        self.done.append(done)
        self._open = None
        return told

    def _of_item(self, kind: str, **fields: Any) -> Told:  # noqa: ANN401 fields of an event
        assert self._open is not None
        return Told(kind, {"item_id": self._open.id, "output_index": self._place, **fields})


def _empty_part(item: OutputItem) -> OutputText | ReasoningText | None:
    """What an item's content begins with."""
    match item:
        case OutputMessage():
            return OutputText(text="")
        case OutputReasoning():
            return ReasoningText("")
        case OutputCall():
            return None


class ResponsesShape:
    """Makes the objects of one /v1/responses, streamed and whole. A response has one choice, made of items."""

    prefix = "resp"

    def __init__(self, body: ResponsesRequest) -> None:
        self._body = body
        self._number = 0
        self._items: Items | None = None
        self.begun: ResponseObject | None = None  # the response as its client knows it

    def chunks(
        self, envelope: Envelope, index: int, piece: TextPiece, prompt: list[int] | None
    ) -> list[msgspec.Struct]:
        events = [] if prompt is None else self._opening(envelope)
        assert self._items is not None
        return [*events, *map(self._told, self._items.add(piece, envelope))]

    def ending(self, envelope: Envelope, usage: Usage) -> list[msgspec.Struct]:
        assert self._items is not None
        whole = self._whole(envelope, self._items, usage)
        return [self._event(whole.status, response=whole)]

    def whole(self, envelope: Envelope, choices: list[WholeChoice], usage: Usage) -> ResponseObject:
        [choice] = choices
        items = Items(envelope.id)
        items.add(_as_piece(choice), envelope)
        return self._whole(envelope, items, usage)

    def _whole(self, envelope: Envelope, items: Items, usage: Usage) -> ResponseObject:
        begun = self.begun = self.begun or self.new(envelope)
        details = usage.completion_tokens_details
        return replace(
            begun,
            status="incomplete" if items.cut else "completed",
            incomplete_details=IncompleteDetails("max_output_tokens") if items.cut else None,
            output=items.done,
            usage=ResponseUsage(
                usage.prompt_tokens,
                InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
                usage.completion_tokens,
                OutputTokensDetails(0 if details is UNSET else details.reasoning_tokens),
                usage.total_tokens,
            ),
        )

    def new(self, envelope: Envelope) -> ResponseObject:
        """The response before anything of it is there."""
        body = self._body
        return ResponseObject(
            id=envelope.id,
            created_at=envelope.created,
            model=envelope.model,
            status="in_progress",
            instructions=body.instructions,
            metadata=body.metadata,
            previous_response_id=body.previous_response_id,
            max_output_tokens=body.max_output_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_logprobs=body.top_logprobs,
            truncation=body.truncation,
            text=body.text,
            reasoning=body.reasoning,
            background=body.background,
            store=body.store,
            parallel_tool_calls=body.parallel_tool_calls,
            tool_choice=body.tool_choice,
            tools=body.tools,
        )

    def failed(self, error: ErrorDetail) -> ResponseEvent:
        """The last event of a stream that failed after its beginning."""
        assert self.begun is not None
        return self._event("failed", response=replace(self.begun, status="failed", error=error))

    def _opening(self, envelope: Envelope) -> list[ResponseEvent]:
        self._items = Items(envelope.id)
        self.begun = self.new(envelope)
        return [self._event("created", response=self.begun), self._event("in_progress", response=self.begun)]

    def _told(self, told: Told) -> ResponseEvent:
        return self._event(told.kind, **told.fields)

    def _event(self, kind: str, **fields: Any) -> ResponseEvent:  # noqa: ANN401 fields of an event
        self._number += 1
        return ResponseEvent(type=f"response.{kind}", sequence_number=self._number - 1, **fields)


def _as_piece(choice: WholeChoice) -> TextPiece:
    """A whole choice as the one piece that it might have come in."""
    return TextPiece(
        choice.text,
        tuple(choice.token_ids),
        choice.finish_reason,
        choice.stop_reason,
        tuple(choice.logprobs),
        reasoning=choice.reasoning,
        calls=tuple(call for pieces in choice.calls for call in pieces),
    )
