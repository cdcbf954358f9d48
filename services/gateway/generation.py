"""One request from its submission to its end, whatever happens to routers and workers meanwhile."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import structlog
from msgspec.structs import replace

from livescale.services.gateway.errors import from_bus, overloaded, timed_out
from livescale.services.gateway.output import Output, TextPiece
from livescale.services.gateway.progress import MOVES, Fresh, GenerationState, already_ended, failure, resumed
from livescale.services.gateway.request_stream import Lost, RequestStream, Silent, TooSlow, Unplaced
from livescale.services.gateway.streams import Backend
from livescale.shared.bus.contract import BusError, Context, Refusal, TooLarge
from livescale.shared.messages.requests import Submit, leaving
from livescale.shared.policy.invariants import check
from livescale.shared.subjects import SUBMIT

SUBMIT_TIMEOUT_SECONDS = 1.0
RETRY_SECONDS = 0.1  # the first pause; it doubles with every refusal
LONGEST_RETRY_SECONDS = 1.0
# After this time a client is told that its request still waits for a router or the bus.
TOLD_SECONDS = 1.0
# A request that is lost this often at the same token is given up: it may be what kills its workers.
LOSSES = 5
# A request that no worker has begun is submitted again after this many silences: the message of its loss may be lost.
UNPLACED_SILENCES = 10

Emit = Callable[[TextPiece], Awaitable[None]]
Wait = Callable[[], Awaitable[None]]

log = structlog.get_logger()


async def just_wait() -> None:
    """Say nothing: the client hears nothing before its whole answer."""


@dataclass
class GenerationTimes:
    """The moments of one generation, in seconds of the gateway's clock. `losses` are followed by a new submission."""

    started: float
    first: float | None = None
    last: float | None = None
    losses: list[tuple[float, str]] = field(default_factory=list)


class Generation:
    """One request's tokens, handed as pieces of text to `emit` in order. The request is cancelled when `run` is
    cancelled or `emit` fails.

    `wait` is called for every second in which nothing comes: the request is held, or its next tokens are being made.

    `generated` are the tokens that were handed on; `cached_tokens` counts the tokens of the prompt that were not
    computed. `times` are for the trace and the metrics of the request when it is over.

    One that `follows` is a further choice of a request whose first one was accepted: it is not refused any more for
    want of room, but waits for it. A grammar is that of the client's parameter `grammar_param`.
    """

    def __init__(
        self,
        backend: Backend,
        submit: Submit,
        output: Output,
        context: Context,
        *,
        follows: bool = False,
        grammar_param: str | None = None,
    ) -> None:
        self._backend = backend
        self._submit = submit
        self.output = output
        self._context = context
        self._follows = follows
        self._grammar_param = grammar_param
        self._metrics = backend.metrics.of_model(submit.model)
        self.times = GenerationTimes(backend.clock.now())
        self.version: str | None = None  # of the model, once it has made tokens
        self.state = GenerationState.NEW
        self._arrived: list[int] = []
        self.generated: list[int] = []
        self.cached_tokens = 0
        self.finish_reason: str | None = None

    @property
    def fingerprint(self) -> str | None:
        """What makes the tokens: the version of the model, and that of its adapter; None before the first token."""
        adapter = self._submit.adapter
        return self.version if self.version is None or adapter is None else f"{self.version}+{adapter.version}"

    async def run(self, emit: Emit, wait: Wait = just_wait) -> None:
        """Return after the piece that has a finish reason. Raises ApiError."""
        self._metrics.held[self._submit.request_id] = self.times.started
        try:
            async with asyncio.timeout(self._submit.deadline - self._backend.clock.wall()):
                await self._run(emit, wait)
        except TimeoutError:
            raise timed_out("The request's deadline has passed.") from None
        finally:
            self._move(GenerationState.ENDED)
            self._metrics.held.pop(self._submit.request_id, None)

    async def _run(self, emit: Emit, wait: Wait) -> None:
        submit, losses = self._submit, Counter[int]()
        for attempt in count(1):
            lost = await self._attempt(submit, emit, wait)
            if lost is None:
                return
            self._move(GenerationState.LOST)
            reason = already_ended(self._submit, self._arrived)
            if reason is not None:
                await self._deliver(Fresh((), reason), emit)
                return
            log.warning("request_lost", request=submit.request_id, attempt=attempt, reason=lost.reason)
            losses[len(self._arrived)] += 1
            self.times.losses.append((self._backend.clock.now(), lost.reason))
            if losses[len(self._arrived)] == LOSSES:
                raise overloaded("The workers that ran this request failed too often; you may send it again.")
            self._backend.metrics.resumptions.inc()
            submit = resumed(self._submit, self._arrived, attempt, self.version)

    async def _attempt(self, submit: Submit, emit: Emit, wait: Wait) -> Lost | None:
        """Submit the request once, and hand on what comes. Returns None after the last piece, and Lost where the
        request has to be submitted again. Nothing is left running."""
        received, version = len(submit.generated), submit.version
        with self._backend.streams.open(submit.request_id, received, version, is_new=self._is_new) as stream:
            ended = False
            try:
                await self._send(submit, stream, wait)
                while True:
                    event = await self._next(stream, wait)
                    self.version = stream.version
                    match event:
                        case Fresh(finish_reason="cancelled") as fresh:
                            # Some process took this gateway for dead. That was wrong: the client still waits.
                            if fresh.token_ids:
                                await self._deliver(replace(fresh, finish_reason=None), emit)
                            return Lost("the system cancelled it, not its client")
                        case Fresh() as fresh:
                            ended = fresh.finish_reason is not None
                            if await self._deliver(fresh, emit):
                                return None
                        case Unplaced():
                            await self._send(submit, stream, wait)
                        case Lost() as lost:
                            return lost
                        case TooSlow():
                            raise overloaded(
                                "The client reads more slowly than tokens are generated, so the request was cancelled."
                            )
            finally:
                if not ended:
                    self._backend.streams.stop(submit.request_id, stream.worker)

    async def _send(self, submit: Submit, stream: RequestStream, wait: Wait) -> None:
        """Return once a router has the request, or a worker. While none can be reached the request is held. Raises
        ApiError where a router refuses a new request; one that was accepted before waits until it can be taken."""
        began = self._backend.clock.now()
        if not (stream.has_come or await self._ask_router(submit, stream)):
            with self._backend.held.hold(is_new=self._is_new):
                await self._send_again(submit, stream, wait, began)
        self._move(GenerationState.ACCEPTED)

    async def _send_again(self, submit: Submit, stream: RequestStream, wait: Wait, began: float) -> None:
        for pause in pauses():
            if self._backend.clock.now() - began >= TOLD_SECONDS:
                await wait()
            # A router that was away had taken it where tokens come: one that is asked now would have it run once more.
            if await stream.comes_within(pause) or await self._ask_router(submit, stream):
                return

    def _move(self, state: GenerationState) -> None:
        """Change the state; a request that is submitted again under the same id keeps it."""
        if state is not self.state:
            self.state = MOVES.advance(self.state, state)

    async def _ask_router(self, submit: Submit, stream: RequestStream) -> bool:
        submit = leaving(submit, self._backend.clock.wall())
        try:
            answer = await self._backend.bus.call(SUBMIT, submit, timeout=SUBMIT_TIMEOUT_SECONDS, context=self._context)
        except BusError as error:
            if isinstance(error, Refusal) and error.code == 409:
                return True  # an earlier call brought it there, though it was not answered
            if self._is_final(error):
                raise from_bus(error, submit.model) from None
            log.debug("router_away", request=submit.request_id, error=str(error))
            return False
        stream.worker = stream.worker or answer.worker
        return True

    @property
    def _is_new(self) -> bool:
        return self.state is GenerationState.NEW and not self._follows

    def _is_final(self, error: BusError) -> bool:
        """Whether the error is about the request itself, and not only about this moment. A deadline is not: it is kept
        here, and a call that came too late may be made again."""
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
                return self._is_new
            case _:
                return False

    async def _next(self, stream: RequestStream, wait: Wait) -> Fresh | Lost | TooSlow | Unplaced:
        for silences in count(1):
            event = await stream.next()
            if not isinstance(event, Silent):
                return event
            self._backend.streams.ask_again(stream)
            await wait()
            if stream.worker is None and silences == UNPLACED_SILENCES:
                break
        return Unplaced()

    async def _deliver(self, fresh: Fresh, emit: Emit) -> bool:
        """Hand on what came; returns whether it was the last. Raises ApiError where the request failed."""
        self._measure(len(fresh.token_ids))
        self._arrived.extend(fresh.token_ids)
        self.cached_tokens = max(self.cached_tokens, fresh.cached_tokens)
        error = failure(fresh, self._grammar_param)
        if error is not None:
            raise error
        piece = self.output.feed(fresh)
        self.finish_reason = piece.finish_reason
        if piece.token_ids and not self.generated:
            self._metrics.prompt.inc(len(self._submit.prompt))
        self._metrics.generated.inc(len(piece.token_ids))
        self.generated.extend(piece.token_ids)
        await emit(piece)
        return piece.finish_reason is not None

    def check_invariants(self) -> None:
        """Check that the client has what arrived, and no more than it asked for. Raises InvariantBroken."""
        check(self._broken())

    def _broken(self) -> Iterator[str]:
        id, arrived = self._submit.request_id, len(self._arrived)
        if self.generated != self._arrived[: len(self.generated)]:
            yield f"{id}: other tokens were handed on than arrived"
        if arrived > self._submit.max_tokens:
            yield f"{id}: {arrived} tokens of {self._submit.max_tokens}"
        if arrived and self.state is GenerationState.NEW:
            yield f"{id}: {arrived} tokens, and nobody took it"

    def _measure(self, tokens: int) -> None:
        now = self._backend.clock.now()
        times = self.times
        if times.last is None:
            times.first = now
            self._metrics.held.pop(self._submit.request_id, None)
            self._metrics.ttft.observe(now - times.started)
        elif tokens:
            self._metrics.tbt.observe((now - times.last) / tokens)
        times.last = now


def pauses() -> Iterator[float]:
    """The seconds between one attempt to submit a request and the next."""
    pause = RETRY_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_RETRY_SECONDS)
