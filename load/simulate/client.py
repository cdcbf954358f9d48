"""Clients of a simulation: requests go through the gateway's own streams and generations, only HTTP is left out."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from livescale.load.records import Ask, RequestRecord
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.generation import Generation
from livescale.services.gateway.metrics import GatewayMetrics
from livescale.services.gateway.output import StopReason, TextPiece
from livescale.services.gateway.progress import Fresh
from livescale.services.gateway.streams import Backend, HeldRequests, Peers, RequestStreams
from livescale.shared.bus.contract import Bus, BusError, Context
from livescale.shared.messages.registry import AskModels
from livescale.shared.messages.requests import AdapterUse, Sampling, Submit
from livescale.shared.process.run import World
from livescale.shared.subjects import MODELS

MAX_REQUESTS, STREAM_QUEUE = 100_000, 4096
MODELS_SECONDS = 2.0
PATIENCE_SECONDS = 3600.0


class TokensOnly:
    """Hands on tokens in the place of the output that makes text of them."""

    reasoning_tokens: int | None = None

    def feed(self, fresh: Fresh) -> TextPiece:
        reason: StopReason | None = None
        if fresh.finish_reason is not None:
            reason = "stop" if fresh.finish_reason == "stop" else "length"
        return TextPiece("", fresh.token_ids, reason, logprobs=fresh.logprobs, prompt_logprobs=fresh.prompt_logprobs)


class HeadlessGateway:
    """A gateway without HTTP: its streams and held requests, asked by a method."""

    def __init__(self, world: World) -> None:
        self.id = world.info.id
        metrics = GatewayMetrics(world.telemetry, world.clock)
        self.streams = RequestStreams(world.bus, self.id, metrics, MAX_REQUESTS, STREAM_QUEUE)
        held = HeldRequests(metrics.router_waits, MAX_REQUESTS)
        self.backend = Backend(world.bus, world.clock, self.streams, metrics, held)
        self.membership = world.membership("gateway")

    async def run(self) -> None:
        arriving = await self.streams.listen()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.streams.run(arriving), name="streams")
            tasks.create_task(Peers(self.backend.bus, self.streams).run(), name="peers")
            tasks.create_task(self.membership.run(), name="membership")

    async def why_not_ready(self) -> str | None:
        return await self.membership.why_not_ready()


def submit_of(gateway: HeadlessGateway, model: str, ask: Ask, seconds: float) -> Submit:
    """The request that a gateway makes of what its client asks for, and waits for so many seconds."""
    return Submit(
        request_id=f"{gateway.id}-{ask.index}",
        model=model,
        gateway=gateway.id,
        prompt=ask.prompt,
        sampling=Sampling(temperature=ask.temperature, seed=ask.seed),
        max_tokens=ask.max_tokens,
        deadline=gateway.backend.clock.wall() + seconds,
    )


async def find_adapter(bus: Bus, name: str) -> AdapterUse | None:
    """What a gateway says of an adapter that a client names; None where nobody tells its version."""
    with suppress(BusError):
        models = (await bus.call(MODELS, AskModels(), timeout=MODELS_SECONDS)).models
        for entry in models:
            if entry.spec.name == name and entry.version is not None:
                return AdapterUse(name=name, version=entry.version)
    return None


async def fetch(gateway: HeadlessGateway, model: str, ask: Ask, seconds: float = PATIENCE_SECONDS) -> RequestRecord:
    """Send one request now, and follow it to its end; whatever goes wrong is in the record."""
    return await send(gateway, ask, submit_of(gateway, model, ask, seconds), lambda piece: None)


async def send(gateway: HeadlessGateway, ask: Ask, submit: Submit, watch: Callable[[TextPiece], None]) -> RequestRecord:
    """As `fetch`, with what was made of `ask`. `watch` sees each piece of the answer."""
    clock = gateway.backend.clock
    sent, token_ids, token_at = clock.wall(), list[int](), list[float]()

    async def emit(piece: TextPiece) -> None:
        watch(piece)
        token_ids.extend(piece.token_ids)
        token_at.extend([clock.wall()] * len(piece.token_ids))

    generation, refusal = Generation(gateway.backend, submit, TokensOnly(), Context()), None
    try:
        await generation.run(emit)
    except ApiError as error:
        refusal = error
    retry_after_ms = None if refusal is None else refusal.retry_after_ms
    return RequestRecord(
        index=ask.index,
        due=sent,
        sent=sent,
        ended=clock.wall(),
        prompt_tokens=len(ask.prompt),
        asked_tokens=ask.max_tokens,
        id=submit.request_id,
        status=200 if refusal is None else refusal.status,
        finish_reason=generation.finish_reason,
        error=None if refusal is None else str(refusal),
        retry_after=None if retry_after_ms is None else retry_after_ms / 1000,
        token_ids=token_ids,
        token_at=token_at,
    )


async def replay(gateway: HeadlessGateway, model: str, asks: Sequence[Ask]) -> list[RequestRecord]:
    """Send each request when it is due, counted from now; returns when all have ended, in the order of `asks`."""
    loop = asyncio.get_running_loop()
    begun = loop.time()

    async def one(ask: Ask) -> RequestRecord:
        await asyncio.sleep(begun + ask.at - loop.time())
        return await fetch(gateway, model, ask)

    return await asyncio.gather(*(one(ask) for ask in asks))
