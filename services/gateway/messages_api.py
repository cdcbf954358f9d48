"""The endpoints of messages, as Anthropic's clients call them: an adapter over the way that chats are answered."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.completions import Completions
from livescale.services.gateway.messages_request import NAMES, CountRequest, MessagesRequest, chat_of_messages
from livescale.services.gateway.messages_shape import MessagesShape, TokenCount, message_error
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
