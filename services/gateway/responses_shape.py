"""How pieces of text become a response and its events. Pure."""

from typing import Any, Literal

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
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    ResponseEvent,
    ResponseObject,
    ResponseUsage,
)
from livescale.services.gateway.responses_request import ResponsesRequest

PLACE: dict[str, Any] = {"output_index": 0, "content_index": 0}


class ResponsesShape:
    """Makes the objects of one /v1/responses, streamed and whole. A response has one choice: its message."""

    prefix = "resp"

    def __init__(self, body: ResponsesRequest) -> None:
        self._body = body
        self._number = 0
        self._so_far: WholeChoice | None = None
        self.begun: ResponseObject | None = None  # the response as its client knows it

    def chunks(
        self, envelope: Envelope, index: int, piece: TextPiece, prompt: list[int] | None
    ) -> list[msgspec.Struct]:
        events = [] if prompt is None else self._opening(envelope)
        assert self._so_far is not None
        assert self.begun is not None
        self._so_far.add(piece)
        item = _item_id(self.begun.id)
        logprobs = _logprobs(envelope, piece)
        if piece.text or logprobs:
            told = self._event("output_text.delta", item_id=item, delta=piece.text, logprobs=logprobs, **PLACE)
            events.append(told)
        if piece.finish_reason is not None:
            message = _message(self.begun.id, envelope, self._so_far)
            [part] = message.content
            events += [
                self._event("output_text.done", item_id=item, text=part.text, logprobs=part.logprobs, **PLACE),
                self._event("content_part.done", item_id=item, part=part, **PLACE),
                self._event("output_item.done", output_index=0, item=message),
            ]
        return list(events)

    def ending(self, envelope: Envelope, usage: Usage) -> list[msgspec.Struct]:
        assert self._so_far is not None
        whole = self.whole(envelope, [self._so_far], usage)
        return [self._event(whole.status, response=whole)]

    def whole(self, envelope: Envelope, choices: list[WholeChoice], usage: Usage) -> ResponseObject:
        [choice] = choices
        begun = self.begun = self.begun or self.new(envelope)
        cut, details = choice.finish_reason == "length", usage.completion_tokens_details
        return replace(
            begun,
            status="incomplete" if cut else "completed",
            incomplete_details=IncompleteDetails("max_output_tokens") if cut else None,
            output=[_message(begun.id, envelope, choice)],
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
        )

    def failed(self, error: ErrorDetail) -> ResponseEvent:
        """The last event of a stream that failed after its beginning."""
        assert self.begun is not None
        return self._event("failed", response=replace(self.begun, status="failed", error=error))

    def _opening(self, envelope: Envelope) -> list[ResponseEvent]:
        self._so_far = WholeChoice([])
        self.begun = self.new(envelope)
        item = OutputMessage(id=_item_id(self.begun.id), status="in_progress")
        return [
            self._event("created", response=self.begun),
            self._event("in_progress", response=self.begun),
            self._event("output_item.added", output_index=0, item=item),
            self._event("content_part.added", item_id=item.id, part=OutputText(text=""), **PLACE),
        ]

    def _event(self, kind: str, **fields: Any) -> ResponseEvent:  # noqa: ANN401 fields of an event
        self._number += 1
        return ResponseEvent(type=f"response.{kind}", sequence_number=self._number - 1, **fields)


def _message(response_id: str, envelope: Envelope, choice: WholeChoice) -> OutputMessage:
    status: Literal["completed", "incomplete"] = "incomplete" if choice.finish_reason == "length" else "completed"
    part = OutputText(text=choice.text, logprobs=_logprobs(envelope, choice))
    return OutputMessage(id=_item_id(response_id), status=status, content=[part])


def _logprobs(envelope: Envelope, told: TextPiece | WholeChoice) -> list[ContentLogprob]:
    logprobs = envelope.chat_logprobs(told)
    return [] if logprobs is None else logprobs.content


def _item_id(response_id: str) -> str:
    return f"msg-{response_id.partition('-')[2]}"
