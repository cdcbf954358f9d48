"""The endpoints of messages, as Anthropic's clients call them: an adapter over the way that chats are answered."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.completions import Completions
from livescale.services.gateway.messages_request import NAMES, CountRequest, MessagesRequest, chat_of_messages
from livescale.services.gateway.messages_shape import (
    Message,
    MessageErrorBody,
    MessageEvent,
    MessagesShape,
    TokenCount,
    message_error,
)
from livescale.services.gateway.openapi import BODY_ERRORS, GENERATION_ERRORS, MODEL_ERRORS, Operation
from livescale.services.gateway.parse import parse_body, read_body
from livescale.services.gateway.responses import EventStreamResponse, json_answer, while_connected


@dataclass(frozen=True)
class MessagesApi:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError."""

    completions: Completions

    async def create(self, request: Request) -> Response:
        """Answer POST /v1/messages, whole or as a stream of Anthropic's events."""
        data = await read_body(request, self.completions.max_body_bytes)
        body = parse_body(data, MessagesRequest)
        response = await self.completions.converse(request, chat_of_messages(body), MessagesShape(), NAMES)
        if body.stream:
            return EventStreamResponse(response.stream, typed=True, failure=message_error)
        return json_answer(await while_connected(request.receive, response.collect()))

    async def count(self, request: Request) -> Response:
        """Answer POST /v1/messages/count_tokens: the tokens of the prompt, without an answer."""
        data = await read_body(request, self.completions.max_body_bytes)
        body = chat_of_messages(parse_body(data, CountRequest))
        return json_answer(TokenCount(await self.completions.count(body, NAMES)))


def message_operations(api: MessagesApi) -> list[Operation]:
    """Return the operations of messages, for the application and OpenAPI."""
    return [
        Operation(
            "POST",
            "/v1/messages",
            api.create,
            "Answer a conversation as Anthropic's API does",
            {200: Message},
            body=MessagesRequest,
            stream=MessageEvent,
            errors=GENERATION_ERRORS,
            error=MessageErrorBody,
            protected=True,
        ),
        Operation(
            "POST",
            "/v1/messages/count_tokens",
            api.count,
            "How many tokens a conversation has",
            {200: TokenCount},
            body=CountRequest,
            errors=(*BODY_ERRORS, *MODEL_ERRORS),
            error=MessageErrorBody,
            protected=True,
        ),
    ]
