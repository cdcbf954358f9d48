"""One request from its submission to its end, whatever happens to the workers meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import structlog

from services.gateway.errors import ApiError, from_bus, from_end, overloaded, timed_out
from services.gateway.metrics import GatewayMetrics
from services.gateway.output import Output, Piece
from services.gateway.sequence import Fresh
from services.gateway.streams import Lost, Stream, Streams, TooSlow
from shared.bus.contract import Bus, BusError, Context, Refusal, TooLarge
from shared.deadlines import leaving
from shared.messages.requests import Cancel, FinishReason, Submit
from shared.subjects import CANCEL, SUBMIT
from shared.world import Clock

SUBMIT_TIMEOUT_SECONDS = 5.0
ATTEMPTS = 5
RETRY_SECONDS = 0.2  # doubles with every attempt
# A worker that is silent for so long may have sent a frame that was lost.
SILENCE_SECONDS = 1.0

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


class Generation:
    """Hands pieces to `emit` in order. Whoever cancels `run`, or makes `emit` fail, cancels the request.

    `wait` is called for every second in which nothing comes, once the request is accepted: it is held, or being made.

    `generated` are the tokens that were handed on, `cached_tokens` those of the prompt that were not computed.
    """

    def __init__(self, engine: Engine, submit: Submit, output: Output, context: Context) -> None:
        self._engine = engine
        self._submit = submit
        self._output = output
        self._context = context
        self._started = engine.clock.now()
        self._last: float | None = None
        self._arrived: list[int] = []
        self.generated: list[int] = []
        self.cached_tokens = 0

    async def run(self, emit: Emit, wait: Wait = just_wait) -> None:
        """Return after the piece with a finish reason. Raises ApiError."""
        held = self._engine.metrics.held.labels(self._submit.model)
        held.inc()
        try:
            async with asyncio.timeout(self._submit.deadline - self._engine.clock.wall()):
                await self._run(emit, wait)
        except TimeoutError:
            raise timed_out("The request's deadline has passed.") from None
        finally:
            if self._last is None:
                held.dec()

    async def _run(self, emit: Emit, wait: Wait) -> None:
        submit = self._submit
        for attempt in range(1, ATTEMPTS + 1):
            lost = await self._attempt(submit, attempt, emit, wait)
            if lost is None:
                return
            reason = already_ended(self._submit, self._arrived)
            if reason is not None:
                await self._deliver(Fresh((), reason), emit)
                return
            log.warning("request_lost", request=submit.request_id, attempt=attempt, reason=lost.reason)
            self._engine.metrics.resumptions.inc()
            submit = resumed(self._submit, self._arrived, attempt)
            await asyncio.sleep(RETRY_SECONDS * 2 ** (attempt - 1) if attempt > 1 else 0)
        raise overloaded("The request was lost too often; it may be sent again.")

    async def _attempt(self, submit: Submit, attempt: int, emit: Emit, wait: Wait) -> Lost | None:
        """One submission: None when the last piece was handed on. Leaves nothing running behind."""
        with self._engine.streams.open(submit.request_id, len(submit.generated)) as stream:
            ended = False
            try:
                refused = await self._send(submit, attempt)
                while refused is None:
                    event = await self._next(stream, wait)
                    if isinstance(event, Lost):
                        return event
                    ended = event.finish_reason is not None
                    if await self._deliver(event, emit):
                        return None
                return refused
            finally:
                if not ended:
                    self._engine.bus.publish(CANCEL, Cancel(request_id=submit.request_id))

    async def _send(self, submit: Submit, attempt: int) -> Lost | None:
        """A first refusal is for the client to know; later ones are part of the trouble that a resumption is in."""
        submit = leaving(submit, self._engine.clock.wall())
        try:
            await self._engine.bus.call(SUBMIT, submit, timeout=SUBMIT_TIMEOUT_SECONDS, context=self._context)
        except BusError as error:
            final = isinstance(error, TooLarge) or (isinstance(error, Refusal) and error.code in (400, 404))
            if attempt == 1 or final:
                raise from_bus(error, submit.model) from None
            return Lost(str(error))
        return None

    async def _next(self, stream: Stream, wait: Wait) -> Fresh | Lost:
        while True:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    event = await stream.next()
            except TimeoutError:
                self._engine.streams.ask_again(stream)
                await wait()
                continue
            if isinstance(event, TooSlow):
                raise overloaded("The client reads slower than tokens are made; the request was cancelled.")
            return event

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

    def _measure(self, tokens: int) -> None:
        metrics, model, now = self._engine.metrics, self._submit.model, self._engine.clock.now()
        if self._last is None:
            metrics.held.labels(model).dec()
            metrics.ttft.labels(model).observe(now - self._started)
        elif tokens:
            metrics.tbt.labels(model).observe((now - self._last) / tokens)
        self._last = now


def resumed(submit: Submit, generated: list[int], attempt: int) -> Submit:
    """The same request, to be continued elsewhere. A new id, so that a worker that is not quite dead is not heard."""
    return msgspec.structs.replace(
        submit, request_id=f"{submit.request_id}-{attempt + 1}", generated=[*submit.generated, *generated]
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
        case "cancelled":
            return overloaded("The request was cancelled by the system.")
        case "deadline":
            return timed_out("The request's deadline has passed.")
        case _:
            return None
