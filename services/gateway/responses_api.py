"""The endpoints of responses: an adapter over the way that chats are answered, with a memory."""

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
from livescale.services.gateway.errors import ApiError, bad_request, from_bus, internal
from livescale.services.gateway.parse import parse_body, read_body
from livescale.services.gateway.responses import EventStreamResponse, Wait, Write, json_answer, while_connected
from livescale.services.gateway.responses_input import input_items, page_of
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
from livescale.services.gateway.responses_store import ResponseStore
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.responses import KeptResponse
from livescale.shared.runtime.clock import Clock

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
    store: ResponseStore
    clock: Clock
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
        if body.background and not self.store.keeps:
            raise bad_request("'background' needs responses that are kept; this gateway keeps none.", "background")
        earlier = await self._conversation(visit.who, body.previous_response_id)
        shape = ResponsesShape(body)
        response = await self.completions.converse(request, chat_of(body, earlier), shape, NAMES)
        exchange = Exchange(visit.who, body, [*earlier, *messages_of(body.input)], shape, response)
        if body.stream:
            return EventStreamResponse(lambda write, wait: self._stream(exchange, write, wait), typed=True)
        if body.background:
            return await self._begin(exchange, visit)
        whole = await while_connected(request.receive, response.collect())
        assert isinstance(whole, ResponseObject)
        return json_answer(await self._kept(exchange, whole))

    async def retrieve(self, request: Request) -> Response:
        """Answer GET /v1/responses/{response_id}."""
        if request.query_params.get("stream", "false") != "false":
            raise bad_request(
                "Events are told once; leave 'stream' out, and ask until the status is another.", "stream"
            )
        return json_answer((await self._find(request))[0])

    async def input_items(self, request: Request) -> Response:
        """Answer GET /v1/responses/{response_id}/input_items: what the response was made of, earlier turns included."""
        kept = await self._get(request.state.visit.who, request.path_params["response_id"], "response_id")
        messages = msgspec.json.decode(kept.conversation, type=list[ChatMessage])[: kept.input_messages]
        return json_answer(page_of(input_items(kept.id, messages), request.query_params))

    async def count(self, request: Request) -> Response:
        """Answer POST /v1/responses/input_tokens: the tokens of the prompt, without an answer."""
        data = await read_body(request, self.completions.max_body_bytes)
        body = parse_body(data, ResponsesRequest, typed_items)
        earlier = await self._conversation(request.state.visit.who, body.previous_response_id)
        return json_answer(InputTokens(input_tokens=await self.completions.count(chat_of(body, earlier), NAMES)))

    async def delete(self, request: Request) -> Response:
        found, _ = await self._find(request)
        try:
            await self.store.delete(request.state.visit.who, found.id)
        except BusError as error:
            raise from_bus(error) from None
        return json_answer(DeletedResponse(id=found.id))

    async def cancel(self, request: Request) -> Response:
        """Cancel a response that is made in the background, by this gateway or another one."""
        found, kept = await self._find(request)
        if not found.background:
            raise bad_request("Only responses with 'background': true are cancelled; close the stream.", "response_id")
        if found.status == "in_progress":
            found = replace(found, status="cancelled")
            if not await self.store.put(request.state.visit.who, replace(kept, response=_json(found))):
                raise internal("The response could not be cancelled; try again.")
        return json_answer(found)

    async def _find(self, request: Request) -> tuple[ResponseObject, KeptResponse]:
        """The response that a path names, and what is kept of it."""
        client, id = request.state.visit.who, request.path_params["response_id"]
        kept = await self._get(client, id, "response_id")
        found = msgspec.json.decode(kept.response, type=ResponseObject)
        if found.status == "in_progress" and self.clock.wall() > kept.deadline:
            lost = internal("The gateway that made this response is gone; send the request again.")
            found = replace(found, status="failed", error=lost.detail)
        return found, kept

    async def _conversation(self, client: str, id: str | None) -> list[ChatMessage]:
        """The messages of an earlier response, with its answer."""
        if id is None:
            return []
        kept = await self._get(client, id, "previous_response_id")
        status = msgspec.json.decode(kept.response, type=ResponseObject).status
        if status not in ("completed", "incomplete"):
            raise bad_request(f"The response {id!r} is {status}; it has no answer.", "previous_response_id")
        return msgspec.json.decode(kept.conversation, type=list[ChatMessage])

    async def _get(self, client: str, id: str, param: str) -> KeptResponse:
        try:
            kept = await self.store.get(client, id)
        except BusError as error:
            raise from_bus(error) from None
        if kept is None:
            message = f"There is no response {id!r}: it was not stored, is gone, or is another key's."
            raise ApiError(404, message, param=param, code="response_not_found")
        return kept

    async def _stream(self, exchange: Exchange, write: Write, wait: Wait) -> None:
        async def keep_and_write(event: msgspec.Struct) -> None:
            assert isinstance(event, ResponseEvent)
            whole = event.response
            if isinstance(whole, ResponseObject) and whole.status != "in_progress":
                event = replace(event, response=await self._kept(exchange, whole))
            await write(event)

        try:
            await exchange.response.stream(keep_and_write, wait)
        except ApiError as error:
            if exchange.shape.begun is None:
                raise
            await write(exchange.shape.failed(error.detail))

    async def _begin(self, exchange: Exchange, visit: Visit) -> Response:
        begun = exchange.shape.begun = exchange.shape.new(exchange.response.envelope)
        begun = await self._kept(exchange, begun)
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
                if await self._is_cancelled(exchange):
                    return
            await self._kept(exchange, self._outcome(exchange, making))
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

    async def _is_cancelled(self, exchange: Exchange) -> bool:
        try:
            kept = await self.store.get(exchange.client, exchange.response.envelope.id)
        except BusError:
            return False
        return kept is None or msgspec.json.decode(kept.response, type=ResponseObject).status == "cancelled"

    async def _kept(self, exchange: Exchange, made: ResponseObject) -> ResponseObject:
        """The response after it was stored, where its client wants that; it says whether it is."""
        if not exchange.body.store:
            return made
        items = msgspec.convert(msgspec.to_builtins(made.output), list[InputItem])  # they may be given back as such
        messages = [*exchange.messages, *messages_of(items)]
        kept = KeptResponse(
            id=made.id,
            response=_json(made),
            conversation=_json(messages),
            input_messages=len(exchange.messages),
            deadline=exchange.response.deadline,
        )
        return made if await self.store.put(exchange.client, kept) else replace(made, store=False)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
