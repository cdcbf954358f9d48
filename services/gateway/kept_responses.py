"""The endpoints of responses that were made before, and the conversations that go on with them."""

from dataclasses import dataclass

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.conversation import ChatMessage
from livescale.services.gateway.errors import ApiError, bad_request, from_bus, internal
from livescale.services.gateway.responses import json_answer
from livescale.services.gateway.responses_input import input_items, page_of
from livescale.services.gateway.responses_objects import DeletedResponse, ResponseObject
from livescale.services.gateway.responses_store import ResponseStore
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.responses import KeptResponse
from livescale.shared.runtime.clock import Clock


@dataclass(frozen=True)
class KeptResponses:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError. A client finds its
    own responses only."""

    store: ResponseStore
    clock: Clock

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
            if not await self.store.put(request.state.visit.who, replace(kept, response=as_json(found))):
                raise internal("The response could not be cancelled; try again.")
        return json_answer(found)

    async def conversation(self, client: str, id: str | None) -> list[ChatMessage]:
        """The messages of an earlier response, with its answer."""
        if id is None:
            return []
        kept = await self._get(client, id, "previous_response_id")
        status = msgspec.json.decode(kept.response, type=ResponseObject).status
        if status not in ("completed", "incomplete"):
            raise bad_request(f"The response {id!r} is {status}; it has no answer.", "previous_response_id")
        return msgspec.json.decode(kept.conversation, type=list[ChatMessage])

    async def is_cancelled(self, client: str, id: str) -> bool:
        """Whether the client has cancelled a response that is made in the background, or deleted it."""
        try:
            kept = await self.store.get(client, id)
        except BusError:
            return False
        return kept is None or msgspec.json.decode(kept.response, type=ResponseObject).status == "cancelled"

    async def _find(self, request: Request) -> tuple[ResponseObject, KeptResponse]:
        """The response that a path names, and what is kept of it."""
        client, id = request.state.visit.who, request.path_params["response_id"]
        kept = await self._get(client, id, "response_id")
        found = msgspec.json.decode(kept.response, type=ResponseObject)
        if found.status == "in_progress" and self.clock.wall() > kept.deadline:
            lost = internal("The gateway that made this response is gone; send the request again.")
            found = replace(found, status="failed", error=lost.detail)
        return found, kept

    async def _get(self, client: str, id: str, param: str) -> KeptResponse:
        try:
            kept = await self.store.get(client, id)
        except BusError as error:
            raise from_bus(error) from None
        if kept is None:
            message = f"There is no response {id!r}: it was not stored, is gone, or is another key's."
            raise ApiError(404, message, param=param, code="response_not_found")
        return kept


def as_json(value: object) -> str:
    """Encode what is kept of a response."""
    return msgspec.json.encode(value).decode()
