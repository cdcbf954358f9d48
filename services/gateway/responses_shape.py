"""How pieces of text become a response and its events. Pure."""

from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from livescale.services.gateway.envelope import Envelope, Usage
from livescale.services.gateway.errors import ErrorDetail
from livescale.services.gateway.output import TextPiece, WholeChoice
from livescale.services.gateway.responses_items import Items, Told
from livescale.services.gateway.responses_objects import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseEvent,
    ResponseObject,
    ResponseUsage,
)
from livescale.services.gateway.responses_request import ResponsesRequest


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
