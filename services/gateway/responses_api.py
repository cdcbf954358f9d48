"""The endpoints that make responses: an adapter over the way that chats are answered, with a memory."""

import asyncio
from dataclasses import dataclass, field

import msgspec
import structlog
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.access import Visit
from livescale.services.gateway.completion_response import CompletionResponse
from livescale.services.gateway.completions import Completions
from livescale.services.gateway.conversation import ChatMessage
from livescale.services.gateway.errors import ApiError, bad_request, internal
from livescale.services.gateway.kept_responses import KeptResponses, kept_json, open_response_store
from livescale.services.gateway.openapi import BODY_ERRORS, BUS_ERRORS, GENERATION_ERRORS, MODEL_ERRORS, Operation
from livescale.services.gateway.parse import parse_body, read_body
from livescale.services.gateway.responses import EventStreamResponse, Wait, Write, json_answer, while_connected
from livescale.services.gateway.responses_input import QUERY, ItemList
from livescale.services.gateway.responses_objects import DeletedResponse, InputTokens, ResponseEvent, ResponseObject
from livescale.services.gateway.responses_request import (
    NAMES,
    InputItem,
    ResponsesRequest,
    chat_of,
    check_request,
    messages_of,
    typed_items,
)
from livescale.services.gateway.responses_shape import ResponsesShape
from livescale.services.gateway.settings import GatewaySettings
from livescale.shared.messages.responses import KeptResponse
from livescale.shared.process.run import World

WATCH_SECONDS = 1.0  # how soon a response that another gateway was told to cancel is cancelled

log = structlog.get_logger()


@dataclass(frozen=True)
class Exchange:
    """One response while it is made, and what its client said for it."""

    client: str
    body: ResponsesRequest
    messages: list[ChatMessage]
    shape: ResponsesShape
    response: CompletionResponse


@dataclass(frozen=True)
class ResponsesApi:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError. `run` makes those
    that nobody waits for."""

    completions: Completions
    kept: KeptResponses
    _begun: asyncio.Queue[tuple[Exchange, Visit]] = field(default_factory=asyncio.Queue)

    async def run(self) -> None:
        """Make responses in the background until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                exchange, visit = await self._begun.get()
                group.create_task(self._make(exchange, visit), name=f"response {exchange.response.envelope.id}")

    async def create(self, request: Request) -> Response:
        """Answer POST /v1/responses, whole, as a stream, or in the background."""
        limit = self.completions.max_body_bytes
        body = parse_body(await read_body(request, limit), ResponsesRequest, typed_items)
        check_request(body)
        visit: Visit = request.state.visit
        if body.background and not self.kept.store.keeps:
            raise bad_request(
                "'background' needs responses that are kept, and this gateway keeps none; leave it out.", "background"
            )
        earlier = await self.kept.conversation(visit.who, body.previous_response_id)
        shape = ResponsesShape(body)
        response = await self.completions.converse(request, chat_of(body, earlier), shape, NAMES)
        exchange = Exchange(visit.who, body, [*earlier, *messages_of(body.input)], shape, response)
        if body.stream:
            return EventStreamResponse(lambda write, wait: self._stream(exchange, write, wait), typed=True)
        if body.background:
            return await self._begin(exchange, visit)
        whole = await while_connected(request.receive, response.collect())
        assert isinstance(whole, ResponseObject)
        return json_answer(await self._keep(exchange, whole))

    async def count(self, request: Request) -> Response:
        """Answer POST /v1/responses/input_tokens: the tokens of the prompt, without an answer."""
        data = await read_body(request, self.completions.max_body_bytes)
        body = parse_body(data, ResponsesRequest, typed_items)
        earlier = await self.kept.conversation(request.state.visit.who, body.previous_response_id)
        return json_answer(InputTokens(input_tokens=await self.completions.count(chat_of(body, earlier), NAMES)))

    async def _stream(self, exchange: Exchange, write: Write, wait: Wait) -> None:
        async def keep_and_write(event: msgspec.Struct) -> None:
            assert isinstance(event, ResponseEvent)
            whole = event.response
            if isinstance(whole, ResponseObject) and whole.status != "in_progress":
                event = replace(event, response=await self._keep(exchange, whole))
            await write(event)

        try:
            await exchange.response.stream(keep_and_write, wait)
        except ApiError as error:
            if exchange.shape.begun is None:
                raise
            await write(exchange.shape.failed(error.detail))

    async def _begin(self, exchange: Exchange, visit: Visit) -> Response:
        begun = exchange.shape.begun = exchange.shape.new(exchange.response.envelope)
        begun = await self._keep(exchange, begun)
        if not begun.store:
            raise internal("The response cannot be kept just now, which 'background' needs; try again.")
        visit.defer()
        self._begun.put_nowait((exchange, visit))
        return json_answer(begun)

    async def _make(self, exchange: Exchange, visit: Visit) -> None:
        """Make a response that nobody waits for, unless its client cancels it."""
        making = asyncio.create_task(exchange.response.collect())
        try:
            while not making.done():
                await asyncio.wait([making], timeout=WATCH_SECONDS)
                if await self.kept.is_cancelled(exchange.client, exchange.response.envelope.id):
                    return
            await self._keep(exchange, self._outcome(exchange, making))
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
            visit.finish()

    def _outcome(self, exchange: Exchange, making: asyncio.Task[msgspec.Struct]) -> ResponseObject:
        begun = exchange.shape.begun
        assert begun is not None
        match making.exception():
            case None:
                whole = making.result()
                assert isinstance(whole, ResponseObject)
                return whole
            case ApiError() as error:
                return replace(begun, status="failed", error=error.detail)
            case error:
                log.error("response_failed", response=begun.id, exc_info=error)
                return replace(
                    begun, status="failed", error=internal("Internal error; the gateway's log says why.").detail
                )

    async def _keep(self, exchange: Exchange, made: ResponseObject) -> ResponseObject:
        """The response after it was stored, where its client wants that; it says whether it is."""
        if not exchange.body.store:
            return made
        items = msgspec.convert(msgspec.to_builtins(made.output), list[InputItem])  # they may be given back as such
        messages = [*exchange.messages, *messages_of(items)]
        kept = KeptResponse(
            id=made.id,
            response=kept_json(made),
            conversation=kept_json(messages),
            input_messages=len(exchange.messages),
            deadline=exchange.response.deadline,
        )
        return made if await self.kept.store.put(exchange.client, kept) else replace(made, store=False)


def make_responses(world: World, settings: GatewaySettings, completions: Completions) -> ResponsesApi:
    """Make the endpoints of responses, which keep them as the settings say."""
    return ResponsesApi(completions, KeptResponses(open_response_store(world, settings), world.clock))


def response_operations(api: ResponsesApi) -> list[Operation]:
    """Return the operations of responses, for the application and OpenAPI."""
    return [
        Operation(
            "POST",
            "/v1/responses",
            api.create,
            "Answer an input, after an earlier response if one is named, and keep the response for a while",
            {200: ResponseObject},
            body=ResponsesRequest,
            stream=ResponseEvent,
            errors=GENERATION_ERRORS,
            protected=True,
        ),
        Operation(
            "GET",
            "/v1/responses/{response_id}",
            api.kept.retrieve,
            "A response that was kept",
            {200: ResponseObject},
            errors=(400, 404, *BUS_ERRORS),
            protected=True,
        ),
        *_inputs(api),
        Operation(
            "DELETE",
            "/v1/responses/{response_id}",
            api.kept.delete,
            "Keep a response no longer",
            {200: DeletedResponse},
            errors=(404, *BUS_ERRORS),
            protected=True,
        ),
        Operation(
            "POST",
            "/v1/responses/{response_id}/cancel",
            api.kept.cancel,
            "Cancel a response that is made in the background",
            {200: ResponseObject},
            errors=(400, 404, 500, *BUS_ERRORS),
            protected=True,
        ),
    ]


def _inputs(api: ResponsesApi) -> list[Operation]:
    """The operations that tell what a response is made of, and count it."""
    return [
        Operation(
            "GET",
            "/v1/responses/{response_id}/input_items",
            api.kept.input_items,
            "What a response that was kept was made of, earlier turns included",
            {200: ItemList},
            query=QUERY,
            errors=(400, 404, *BUS_ERRORS),
            protected=True,
        ),
        Operation(
            "POST",
            "/v1/responses/input_tokens",
            api.count,
            "How many tokens an input has, after an earlier response if one is named",
            {200: InputTokens},
            body=ResponsesRequest,
            errors=(*BODY_ERRORS, *MODEL_ERRORS),
            protected=True,
        ),
    ]
