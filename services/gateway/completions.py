"""The completions API: a body is checked, its prompts tokenized, its generations run, and the response made of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as with_fields

from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.bodies import ChatRequest, CompletionRequest, GenerationOptions
from livescale.services.gateway.completion_maker import CompletionMaker, public_id
from livescale.services.gateway.completion_response import CompletionResponse
from livescale.services.gateway.errors import NO_OTHERS, renamed
from livescale.services.gateway.parse import parse_body, read_body
from livescale.services.gateway.prompt_maker import PromptMaker
from livescale.services.gateway.responses import EventStreamResponse, json_answer, while_connected
from livescale.services.gateway.shapes import ChatShape, CompletionShape, ResponseShape


@dataclass(frozen=True)
class Completions:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError."""

    prompts: PromptMaker
    maker: CompletionMaker
    max_body_bytes: int

    async def completion(self, request: Request) -> Response:
        """Answer POST /v1/completions: `n` choices for each prompt."""
        body = parse_body(await read_body(request, self.max_body_bytes), CompletionRequest)
        response = await self.maker.prepare(request, await self.prompts.of_texts(body), CompletionShape())
        return await _answer(request, body, response)

    async def chat(self, request: Request) -> Response:
        """Answer POST /v1/chat/completions: the prompt is what the checkpoint's template makes of the messages."""
        body = parse_body(await read_body(request, self.max_body_bytes), ChatRequest)
        return await _answer(request, body, await self.converse(request, body, ChatShape()))

    async def converse(
        self, request: Request, body: ChatRequest, shape: ResponseShape, names: Mapping[str, str] = NO_OTHERS
    ) -> CompletionResponse:
        """Prepare the response to a conversation, in this shape. Its errors, now and later, call parameters by their
        `names`. Nothing runs yet."""
        origin = public_id(request) if body.seed is None else str(body.seed)
        with renamed(names):
            response = await self.maker.prepare(request, await self.prompts.of_chat(body, origin), shape)
        return with_fields(response, names=names)

    async def count(self, body: ChatRequest, names: Mapping[str, str]) -> int:
        """How many tokens the prompt of a conversation has. Errors call parameters by their `names`."""
        with renamed(names):
            asked = await self.prompts.of_chat(body)
        return len(asked.prompts[0])


async def _answer(request: Request, body: GenerationOptions, response: CompletionResponse) -> Response:
    if body.stream:
        return EventStreamResponse(response.stream)
    return json_answer(await while_connected(request.receive, response.collect()))
