"""Responses kept for their clients, the endpoints that ask for them, and conversations that go on with them."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec
import structlog
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.conversation import ChatMessage
from livescale.services.gateway.errors import ApiError, bad_request, from_bus, internal
from livescale.services.gateway.responses import json_answer
from livescale.services.gateway.responses_input import input_items, page_of
from livescale.services.gateway.responses_objects import DeletedResponse, ResponseObject
from livescale.services.gateway.settings import GatewaySettings
from livescale.shared.bus.contract import BusError, KeyValue
from livescale.shared.messages.responses import RESPONSES, KeptResponse
from livescale.shared.process.run import World
from livescale.shared.runtime.clock import Clock

MOST_KEPT_BYTES = 1 << 30  # of responses, of all clients

log = structlog.get_logger()


@dataclass
class Shelf:
    """What this gateway keeps for one client: the bytes of each response, and the moment when it is gone."""

    kept: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)
    size_bytes: int = 0

    def add(self, id: str, size_bytes: int, until: float) -> None:
        self.drop(id)
        self.kept[id] = (size_bytes, until)
        self.size_bytes += size_bytes

    def drop(self, id: str) -> None:
        size_bytes, _ = self.kept.pop(id, (0, 0.0))
        self.size_bytes -= size_bytes

    def expire(self, now: float) -> None:
        """Forget responses that the store has dropped by itself, as their time is over."""
        while self.kept and next(iter(self.kept.values()))[1] <= now:
            self.drop(next(iter(self.kept)))


class ResponseStore:
    """Keeps each response for `seconds`, and at most `most_bytes` for each client and gateway: the oldest give way.

    A client finds its own responses only. Where `seconds` is 0 nothing is kept.
    """

    def __init__(self, bucket: KeyValue, clock: Clock, seconds: float, most_bytes: int) -> None:
        self._bucket = bucket
        self._clock = clock
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._shelves: dict[str, Shelf] = {}

    @property
    def keeps(self) -> bool:
        return self._seconds > 0

    async def put(self, client: str, kept: KeptResponse) -> bool:
        """Keep a response, or what is new of it. Returns whether it could be kept."""
        size_bytes = len(kept.response.encode()) + len(kept.conversation.encode())
        if not self.keeps or size_bytes > self._most_bytes:
            return False
        now = self._clock.now()
        shelf = self._shelves.setdefault(client, Shelf())
        shelf.expire(now)
        shelf.add(kept.id, size_bytes, now + self._seconds)
        try:
            while shelf.size_bytes > self._most_bytes:
                await self.delete(client, next(iter(shelf.kept)))
            await self._bucket.put(_key(client, kept.id), kept)
        except BusError as error:
            shelf.drop(kept.id)
            log.warning("response_not_kept", response=kept.id, error=str(error))
            return False
        finally:
            self._shelves = {name: one for name, one in self._shelves.items() if one.kept}
        return True

    async def get(self, client: str, id: str) -> KeptResponse | None:
        """A response of this client, None where there is none. Raises BusError."""
        return await self._bucket.get(_key(client, id), KeptResponse) if self.keeps else None

    async def delete(self, client: str, id: str) -> None:
        """Delete a response from the store. Raises BusError."""
        if client in self._shelves:
            self._shelves[client].drop(id)
        await self._bucket.delete(_key(client, id))


def open_response_store(world: World, settings: GatewaySettings) -> ResponseStore:
    """Where responses are kept on the bus's server."""
    bucket = world.bus.bucket(RESPONSES, settings.responses_seconds, MOST_KEPT_BYTES)
    return ResponseStore(bucket, world.clock, settings.responses_seconds, settings.responses_bytes)


def _key(client: str, id: str) -> str:
    """The client's part is of one length, and neither part has a character that keys may not have."""
    owner, one = (hashlib.blake2b(text.encode(), digest_size=16).hexdigest() for text in (client, id))
    return f"{owner}.{one}"


@dataclass(frozen=True)
class KeptResponses:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError. A client finds its
    own responses only."""

    store: ResponseStore
    clock: Clock

    async def retrieve(self, request: Request) -> Response:
        """Answer GET /v1/responses/{response_id}, which a client asks again until the status changes."""
        if request.query_params.get("stream", "false") != "false":
            raise bad_request(
                "A kept response cannot be streamed; leave 'stream' out, and ask again until its status changes.",
                "stream",
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
            raise bad_request(
                "Only responses with 'background': true can be cancelled; to end this one, close its stream.",
                "response_id",
            )
        if found.status == "in_progress":
            found = replace(found, status="cancelled")
            if not await self.store.put(request.state.visit.who, replace(kept, response=kept_json(found))):
                raise internal("The response could not be cancelled; try again.")
        return json_answer(found)

    async def conversation(self, client: str, id: str | None) -> list[ChatMessage]:
        """The messages of an earlier response, with its answer."""
        if id is None:
            return []
        kept = await self._get(client, id, "previous_response_id")
        status = msgspec.json.decode(kept.response, type=ResponseObject).status
        if status not in ("completed", "incomplete"):
            raise bad_request(
                f"The response {id!r} is {status} and has no answer; name a completed one.", "previous_response_id"
            )
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
            message = f"There is no response {id!r}: it was not stored, has expired, or belongs to another key."
            raise ApiError(404, message, param=param, code="response_not_found")
        return kept


def kept_json(value: object) -> str:
    """Encode a response, or the messages that led to it, as the JSON that is kept."""
    return msgspec.json.encode(value).decode()
