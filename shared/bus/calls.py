"""The two ends of a call, as both buses use them.

The asking end has one table of pending answers, failed together when the connection breaks. The answering end decodes,
runs the handler within its deadline, and encodes.
"""

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

import structlog

from livescale.shared.bus.codec import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    DEFLATE,
    JSON,
    MSGPACK,
    STATUS,
    Headers,
    Undecodable,
    content_type,
    context_headers,
    decode,
    deflate,
    encode,
    inflate,
    is_json,
    read_context,
    read_refusal,
    refusal_headers,
)
from livescale.shared.bus.contract import (
    A,
    BusError,
    Call,
    CallTimeout,
    Context,
    Disconnected,
    Endpoint,
    Q,
    Refusal,
    ServiceAbsent,
    TooLarge,
)
from livescale.shared.messages.message import Message
from livescale.shared.runtime.clock import Clock

NO_RESPONDERS = "503"  # the status that the server sends when no process listens

Answer = tuple[bytes, Mapping[str, str]]
Send = Callable[[str, bytes, Headers, str], None]  # subject, data, headers, token

NO_CONTEXT = Context()

# A call that brings no deadline (someone's by hand) gets this one, so that no handler lives for ever.
DEADLINE_SECONDS = 60.0
LIMIT_BYTES = 64 << 20  # of requests under way
RETRY_AFTER_MS = 100
DRAIN_SECONDS = 5.0


Reply = Callable[[bytes, Headers], None]

log = structlog.get_logger()


class Caller:
    """The asking end. `send(subject, data, headers, token)` sends a request; `answer(token, ...)` brings its reply."""

    def __init__(self, clock: Clock, send: Send) -> None:
        self._clock = clock
        self._send = send
        self._tokens = count(1)
        self._pending: dict[str, asyncio.Future[Answer | None]] = {}

    async def call(self, subject: str, call: Call[Q, A], message: Q, timeout: float, context: Context) -> A:
        """Send `message` and wait for its answer. Raises what `Bus.call` raises."""
        seconds = timeout
        if context.deadline is not None:
            seconds = min(timeout, context.deadline - self._clock.wall())
        if seconds <= 0:
            raise CallTimeout(f"{subject}: the deadline has passed")
        headers = context_headers(context, seconds) | {CONTENT_TYPE: MSGPACK}
        data = encode(message)
        answer = await self.exchange(subject, lambda token: self._send(subject, data, headers, token), seconds)
        return _read(subject, call, *answer)

    async def exchange(self, whom: str, send: Callable[[str], None], timeout: float) -> Answer:
        """Send with a fresh token and wait for its answer. Raises CallTimeout, Disconnected, and what `send` raises."""
        token, loop = str(next(self._tokens)), asyncio.get_running_loop()
        future: asyncio.Future[Answer | None] = loop.create_future()
        self._pending[token] = future
        # A timer alone: `asyncio.timeout` costs several times as much, and two calls are made for every request.
        timer = loop.call_later(timeout, _expire, future)
        try:
            send(token)
            answer = await future
        except TimeoutError:
            raise CallTimeout(f"{whom} did not answer within {timeout:.3g} s") from None
        finally:
            timer.cancel()
            del self._pending[token]
        if answer is None:
            raise Disconnected(f"the connection to NATS was lost before {whom} answered")
        return answer

    def answer(self, token: str, data: bytes, headers: Mapping[str, str]) -> None:
        """Hand a reply to the call that waits for it. A late or a second answer is dropped."""
        future = self._pending.get(token)
        if future is not None and not future.done():
            future.set_result((data, headers))

    def fail_all(self) -> None:
        """Fail all pending calls, as the connection is gone: they need not wait until their timeouts."""
        for future in self._pending.values():
            if not future.done():
                future.set_result(None)


def _expire(future: asyncio.Future[Answer | None]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def _read(subject: str, call: Call[Q, A], data: bytes, headers: Mapping[str, str]) -> A:
    if headers.get(STATUS) == NO_RESPONDERS and not data:
        raise ServiceAbsent(f"no process listens on {subject}")
    refusal = read_refusal(headers)
    if refusal is not None:
        raise refusal
    body = inflate(data, headers)
    reply: A = decode(call.reply, body, json=is_json(body, headers))
    return reply


@dataclass
class EndpointStats:
    """What `$SRV.STATS` tells of an endpoint. Times in nanoseconds."""

    num_requests: int = 0
    num_errors: int = 0
    last_error: str = ""
    processing_time: int = 0

    @property
    def average_processing_time(self) -> int:
        return self.processing_time // self.num_requests if self.num_requests else 0


@dataclass
class ServedEndpoint:
    """An endpoint with the calls it is answering and its statistics.

    Its handler runs in the `context` of the server.
    """

    endpoint: Endpoint
    clock: Clock
    stats: EndpointStats = field(default_factory=EndpointStats)
    running: dict[asyncio.Task[None], int] = field(default_factory=dict)  # bytes of each, in the order of arrival
    running_bytes: int = 0
    context: contextvars.Context = field(default_factory=contextvars.copy_context)

    def accept(self, data: bytes, headers: Mapping[str, str], reply: Reply) -> None:
        """Answer in a task of its own, or at once with 429 when too many or too large ones are under way. Never
        raises."""
        self.stats.num_requests += 1
        if len(self.running) >= self.endpoint.limit or self.running_bytes + len(data) > LIMIT_BYTES:
            reply(
                b"",
                self._refused(
                    Refusal(429, "too many calls of this kind are under way; try again later", RETRY_AFTER_MS)
                ),
            )
            return
        answering, context = self._answer(data, headers, reply), self.context.copy()
        task = asyncio.create_task(answering, name=f"answer {self._subject}", context=context)
        self.running[task] = len(data)
        self.running_bytes += len(data)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.running_bytes -= self.running.pop(task)

    async def drain(self, seconds: float) -> None:
        """Wait until all that was accepted is answered; after `seconds`, or when cancelled, give up the rest."""
        try:
            if self.running:
                await asyncio.wait(self.running, timeout=seconds)
        finally:
            for task in self.running:
                task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)

    @property
    def _subject(self) -> str:
        return self.endpoint.call.pattern

    async def _answer(self, data: bytes, headers: Mapping[str, str], reply: Reply) -> None:
        started = self.clock.now()
        json = is_json(data, headers)
        try:
            message = await self._handle(data, headers, json)
            body, extra = encode(message, json=json), {CONTENT_TYPE: content_type(json)}
        except BusError as error:
            log.debug("call_refused", subject=self._subject, error=str(error))
            body, extra = b"", self._refused(_refusal_of(error))
        except Exception:  # the boundary: one bad message must not stop the process
            log.exception("handler_failed", subject=self._subject)
            body, extra = (
                b"",
                self._refused(Refusal(500, f"the service failed while it answered {self._subject}; its log says why")),
            )
        self.stats.processing_time += round((self.clock.now() - started) * 1e9)
        try:
            self._reply(reply, body, extra)
        except TooLarge as error:
            reply(b"", self._refused(Refusal(500, str(error))))

    def _reply(self, reply: Reply, body: bytes, headers: Headers) -> None:
        """Reply, in fewer bytes where there are too many. Raises TooLarge where even those are, and for JSON, which
        people read."""
        try:
            reply(body, headers)
        except TooLarge:
            if headers.get(CONTENT_TYPE) == JSON:
                raise
            reply(deflate(body), headers | {CONTENT_ENCODING: DEFLATE})

    async def _handle(self, data: bytes, headers: Mapping[str, str], json: bool) -> Message:
        wall = self.clock.wall()
        context = read_context(headers, wall)
        seconds = DEADLINE_SECONDS if context.deadline is None else context.deadline - wall
        if seconds <= 0:
            raise Refusal(504, "the deadline passed before the call was answered")
        try:
            body = b"{}" if json and not data else data
            message = decode(self.endpoint.call.request, body, json=json)
        except Undecodable as error:
            raise Refusal(400, f"{self.endpoint.call.request.__name__}: {error}") from None
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await self.endpoint.handler(message, context)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Refusal(504, "the deadline passed before the call was answered") from None

    def _refused(self, refusal: Refusal) -> Headers:
        self.stats.num_errors += 1
        self.stats.last_error = str(refusal)
        return refusal_headers(refusal)


def _refusal_of(error: BusError) -> Refusal:
    """What the caller is told when a handler refuses, or when a process that the handler asked fails. Clients may read
    it, so subjects of the bus are left to the log."""
    match error:
        case Refusal():
            return error
        case ServiceAbsent() | Disconnected():
            return Refusal(503, "a service that is needed cannot be reached", RETRY_AFTER_MS)
        case CallTimeout():
            return Refusal(504, "a service that is needed did not answer in time")
        case _:
            return Refusal(500, str(error))
