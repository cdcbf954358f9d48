"""One request from its submission to its end, whatever happens to the workers meanwhile."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count

import msgspec
import structlog

from livescale.services.gateway.errors import ApiError, from_bus, from_end, overloaded, timed_out
from livescale.services.gateway.holding import Holding
from livescale.services.gateway.lifecycle import MOVES, RequestState
from livescale.services.gateway.metrics import GatewayMetrics
from livescale.services.gateway.output import Output, Piece
from livescale.services.gateway.sequence import Fresh
from livescale.services.gateway.streams import Lost, Silent, Stream, Streams, TooSlow, Unplaced
from livescale.shared.bus.contract import Bus, BusError, Context, Refusal, TooLarge
from livescale.shared.messages.requests import FinishReason, Submit, leaving
from livescale.shared.policy.invariants import check
from livescale.shared.runtime.clock import Clock
from livescale.shared.subjects import SUBMIT

SUBMIT_TIMEOUT_SECONDS = 1.0
RETRY_SECONDS = 0.1  # doubles with every refusal
LONGEST_RETRY_SECONDS = 1.0
# A request that waits for a router, or a bus, that is away tells its client so after this time, and waits on.
TOLD_SECONDS = 1.0
# A request that is lost so often at the same token may be what kills its workers.
LOSSES = 5
# A request that no worker has begun for so many silences is submitted again: the word of its loss may be lost.
UNPLACED_SILENCES = 10

Emit = Callable[[Piece], Awaitable[None]]
Wait = Callable[[], Awaitable[None]]


async def just_wait() -> None:
    """For a client to whom nothing can be said before the end."""


log = structlog.get_logger()


@dataclass(frozen=True)
class Engine:
    """What every generation works with."""

    bus: Bus
    clock: Clock
    streams: Streams
    metrics: GatewayMetrics
    holding: Holding


class Generation:
    """Hands pieces to `emit` in order. Whoever cancels `run`, or makes `emit` fail, cancels the request.

    `wait` is called for every second in which nothing comes: the request is held, or being made.

    `generated` are the tokens that were handed on, `cached_tokens` those of the prompt that were not computed.
    """

    def __init__(self, engine: Engine, submit: Submit, output: Output, context: Context) -> None:
        self._engine = engine
        self._submit = submit
        self._output = output
        self._context = context
        self._metrics = engine.metrics.of_model(submit.model)
        self._started = engine.clock.now()
        self._last: float | None = None
        self._version: str | None = None
        self.state = RequestState.NEW
        self._arrived: list[int] = []
        self.generated: list[int] = []
        self.cached_tokens = 0

    async def run(self, emit: Emit, wait: Wait = just_wait) -> None:
        """Return after the piece with a finish reason. Raises ApiError."""
        held = self._metrics.held
        held.inc()
        try:
            async with asyncio.timeout(self._submit.deadline - self._engine.clock.wall()):
                await self._run(emit, wait)
        except TimeoutError:
            raise timed_out("The request's deadline has passed.") from None
        finally:
            self._move(RequestState.ENDED)
            if self._last is None:
                held.dec()

    async def _run(self, emit: Emit, wait: Wait) -> None:
        submit, losses = self._submit, Counter[int]()
        for attempt in count(1):
            lost = await self._attempt(submit, emit, wait)
            if lost is None:
                return
            self._move(RequestState.LOST)
            reason = already_ended(self._submit, self._arrived)
            if reason is not None:
                await self._deliver(Fresh((), reason), emit)
                return
            log.warning("request_lost", request=submit.request_id, attempt=attempt, reason=lost.reason)
            losses[len(self._arrived)] += 1
            if losses[len(self._arrived)] == LOSSES:
                raise overloaded("The request was lost too often; it may be sent again.")
            self._engine.metrics.resumptions.inc()
            submit = resumed(self._submit, self._arrived, attempt, self._version)

    async def _attempt(self, submit: Submit, emit: Emit, wait: Wait) -> Lost | None:
        """One submission: None when the last piece was handed on. Leaves nothing running behind."""
        with self._engine.streams.open(submit.request_id, len(submit.generated), submit.version) as stream:
            ended = False
            try:
                await self._send(submit, stream, wait)
                while True:
                    match await self._next(stream, wait):
                        case Fresh(finish_reason="cancelled") as fresh:
                            # Whoever took this gateway for dead was wrong: it waits still, and so does the client.
                            if fresh.token_ids:
                                await self._deliver(replace(fresh, finish_reason=None), emit)
                            return Lost("it was cancelled, and not by its client")
                        case Fresh() as fresh:
                            ended = fresh.finish_reason is not None
                            if await self._deliver(fresh, emit):
                                return None
                        case Unplaced():
                            await self._send(submit, stream, wait)
                        case Lost() as lost:
                            return lost
                        case TooSlow():
                            raise overloaded("The client reads slower than tokens are made; the request was cancelled.")
            finally:
                self._version = stream.version
                if not ended:
                    self._engine.streams.stop(submit.request_id, stream.worker)

    async def _send(self, submit: Submit, stream: Stream, wait: Wait) -> None:
        """Until the router has it: while none is there the request is held, as for a model that has no instance. Raises
        ApiError: a refusal of a new request is for its client to know; one that was accepted before waits for whatever
        is in the way."""
        began = self._engine.clock.now()
        if not await self._ask_router(submit, stream):
            with self._engine.holding.hold(is_new=self.state is RequestState.NEW):
                await self._send_again(submit, stream, wait, began)
        self._move(RequestState.ACCEPTED)

    async def _send_again(self, submit: Submit, stream: Stream, wait: Wait, began: float) -> None:
        for pause in pauses():
            if self._engine.clock.now() - began >= TOLD_SECONDS:
                await wait()
            await asyncio.sleep(pause)
            if await self._ask_router(submit, stream):
                return

    def _move(self, state: RequestState) -> None:
        """Submitted again by the same name, it stays."""
        if state is not self.state:
            self.state = MOVES.advance(self.state, state)

    async def _ask_router(self, submit: Submit, stream: Stream) -> bool:
        submit = leaving(submit, self._engine.clock.wall())
        try:
            answer = await self._engine.bus.call(SUBMIT, submit, timeout=SUBMIT_TIMEOUT_SECONDS, context=self._context)
        except BusError as error:
            if isinstance(error, Refusal) and error.code == 409:
                return True  # an earlier call, unanswered, brought it there
            if self._is_final(error):
                raise from_bus(error, submit.model) from None
            log.debug("router_away", request=submit.request_id, error=str(error))
            return False
        stream.worker = stream.worker or answer.worker
        return True

    def _is_final(self, error: BusError) -> bool:
        """Whether it says something of the request, and not only that nobody can take it now. Deadlines are kept here:
        a call that came too late may be made again."""
        match error:
            case TooLarge():
                return True
            case Refusal(code=400 | 404):
                return True
            case Refusal(code=408 | 504):
                return False
            case Refusal(code=503, retry_after_ms=int()):
                return False
            case Refusal():
                return self.state is RequestState.NEW
            case _:
                return False

    async def _next(self, stream: Stream, wait: Wait) -> Fresh | Lost | TooSlow | Unplaced:
        for silences in count(1):
            event = await stream.next()
            if not isinstance(event, Silent):
                return event
            self._engine.streams.ask_again(stream)
            await wait()
            if stream.worker is None and silences == UNPLACED_SILENCES:
                break
        return Unplaced()

    async def _deliver(self, fresh: Fresh, emit: Emit) -> bool:
        """Hand on what came; whether it was the last. Raises ApiError where the request failed."""
        self._measure(len(fresh.token_ids))
        self._arrived.extend(fresh.token_ids)
        self.cached_tokens = max(self.cached_tokens, fresh.cached_tokens)
        error = failure(fresh)
        if error is not None:
            raise error
        piece = self._output.feed(fresh)
        self.generated.extend(piece.token_ids)
        await emit(piece)
        return piece.finish_reason is not None

    def check_invariants(self) -> None:
        """A client has what arrived, and no more than it asked for. Raises InvariantBroken."""
        check(self._broken())

    def _broken(self) -> Iterator[str]:
        id, arrived = self._submit.request_id, len(self._arrived)
        if self.generated != self._arrived[: len(self.generated)]:
            yield f"{id}: other tokens were handed on than arrived"
        if arrived > self._submit.max_tokens:
            yield f"{id}: {arrived} tokens of {self._submit.max_tokens}"
        if arrived and self.state is RequestState.NEW:
            yield f"{id}: {arrived} tokens, and nobody took it"

    def _measure(self, tokens: int) -> None:
        now = self._engine.clock.now()
        if self._last is None:
            self._metrics.held.dec()
            self._metrics.ttft.observe(now - self._started)
        elif tokens:
            self._metrics.tbt.observe((now - self._last) / tokens)
        self._last = now


def pauses() -> Iterator[float]:
    """Between one attempt and the next."""
    pause = RETRY_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_RETRY_SECONDS)


def resumed(submit: Submit, generated: list[int], attempt: int, version: str | None) -> Submit:
    """The same request, to be continued elsewhere. A new id, so that a worker that is not quite dead is not heard.

    With tokens it goes on by the version that made them, else by any.
    """
    return msgspec.structs.replace(
        submit,
        request_id=f"{submit.request_id}-{attempt + 1}",
        generated=[*submit.generated, *generated],
        version=version if generated else None,
    )


def already_ended(submit: Submit, generated: list[int]) -> FinishReason | None:
    """Why a request with these tokens has nothing left to generate; only the word of it was lost."""
    if generated and generated[-1] in submit.stop_token_ids and len(generated) > submit.min_tokens:
        return "stop"
    return "length" if len(generated) >= submit.max_tokens else None


def failure(fresh: Fresh) -> ApiError | None:
    """The client's view of an end that is none of its own."""
    match fresh.finish_reason:
        case "error":
            return from_end(fresh.code, fresh.error or "no reason given")
        case "deadline":
            return timed_out("The request's deadline has passed.")
        case _:
            return None
