"""The course of the demo: start the system, measure one worker, send the load, wait until it is calm again.

Streams are checked afterwards, in `check`.
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec

from livescale.load.client import LoadClient, open_session, send_open_loop
from livescale.load.demo.check import choose_again
from livescale.load.demo.plan import DemoLoad, MeasuredRates, plan_load
from livescale.load.incidents import RunIncident
from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.load.screen import Screen, ScreenView
from livescale.load.settings import DemoSettings
from livescale.load.stats import Tally, duration
from livescale.load.story import Story
from livescale.load.target import LoadTarget, learn_target, make_asks
from livescale.load.trace import Trace
from livescale.load.watch import complete_story, describe, end_on_sigterm, watching, watching_lives
from livescale.services.supervisor.model_settings import ModelSettings
from livescale.services.supervisor.settings import StackSettings
from livescale.services.supervisor.stack import Stack
from livescale.shared.bus.contract import BusError
from livescale.shared.runtime.clock import SystemClock

PREFILLS = 5
PREFILL_TOKENS = 256
# About as many as a worker answers at a time in the burst; a larger batch would take longer than it tells.
DECODE_BATCH = 8
DECODE_TOKENS = 32
DECODE_TRIES = 3
MODEL = "demo"
MIB = 1024 * 1024
REFRESH_SECONDS = 0.25
REQUEST_SECONDS = 300.0
# Well above the downscale delay, which counts from when the last request has been served.
CALM_SECONDS = 60.0


class CalibrationFailed(Exception):
    """The first requests already failed; says how."""


async def calibrate(client: LoadClient, target: LoadTarget) -> MeasuredRates:
    """Prefill from single requests, decode from one small batch: too little to make the monitor scale out."""
    chance = random.Random(0)
    prompt_tokens = min(PREFILL_TOKENS, target.context // 2)
    alone = [await fetch(client, make_ask(chance, target, prompt_tokens, 1)) for _ in range(PREFILLS)]
    # The first request also pays for whatever is done for the first time.
    ttft = median(record.token_at[0] - record.sent for record in alone[1:])
    decoded = await measure_decode(client, target, chance)
    return MeasuredRates(prefill_rate=prompt_tokens / ttft, decode_rate=decoded)


async def measure_decode(client: LoadClient, target: LoadTarget, chance: random.Random) -> float:
    """Tokens a second of a batch; longer answers are tried while a stall, say, keeps the streams apart."""
    tokens = DECODE_TOKENS
    for _ in range(DECODE_TRIES):
        asks = [make_ask(chance, target, 8, tokens) for _ in range(DECODE_BATCH)]
        batch = await asyncio.gather(*(fetch(client, ask) for ask in asks))
        if rate := rate_together(batch):
            return rate
        tokens = min(2 * tokens, target.context - 8)
    return rate_apart(batch)


def make_ask(chance: random.Random, target: LoadTarget, prompt_tokens: int, max_tokens: int) -> Ask:
    return Ask(0, 0.0, chance.choices(target.vocabulary, k=prompt_tokens), max_tokens)


async def fetch(client: LoadClient, ask: Ask) -> RequestRecord:
    record = await client.fetch(ask, client.now())
    if fault := find_fault(record):
        raise CalibrationFailed(f"the first request, which measures the system, failed: {fault}")
    return record


def rate_together(batch: list[RequestRecord]) -> float | None:
    """Tokens a second of streams that decode together, from the last one's first token on; None if they never do."""
    start = max(record.token_at[0] for record in batch)
    end = min(record.token_at[-1] for record in batch)
    tokens = sum(start < at <= end for record in batch for at in record.token_at)
    return tokens / (end - start) if tokens and end > start else None


def rate_apart(batch: list[RequestRecord]) -> float:
    """Tokens a second from when the first was asked to the last token: what the worker can do at least."""
    start = min(record.sent for record in batch)
    end = max(record.token_at[-1] for record in batch)
    return sum(len(record.token_at) for record in batch) / (end - start)


class DemoResult(msgspec.Struct, frozen=True):
    """What a run left behind, to be checked and reported. `again`: requests that were asked a second time in the end,
    with nothing else going on."""

    load: DemoLoad
    capacity: MeasuredRates
    asks: list[Ask]
    records: list[RequestRecord]
    story: Story
    start: float
    end: float
    again: list[RequestRecord]
    incidents: list[RunIncident]


class DemoRun:
    """One run of the demo. `log` takes what the processes print."""

    def __init__(self, settings: DemoSettings, screen: Screen, log: Callable[[str, str], None]) -> None:
        self._settings = settings
        self._screen = screen
        self._clock = SystemClock()
        self._log = log
        self._story = Story(MODEL)
        self._tally = Tally()
        self._records: list[RequestRecord] = []
        self._asks: list[Ask] = []

    async def run(self, checkpoint: Path, source: Trace | None) -> DemoResult:
        """Everything that needs the system up; on return it is down again. SIGTERM cancels it, as Ctrl-C does."""
        end_on_sigterm()
        stack_settings = make_stack_settings(self._settings, checkpoint)
        async with (
            Stack(stack_settings, progress=self._screen.note, echo=self._log) as stack,
            watching(stack.bus, self._story, self._clock, self._screen.note),
            watching_lives(stack.supervisor.children, self._clock, self._screen.note) as befell,
            open_session(stack.url, "", REQUEST_SECONDS) as session,
        ):
            target = await learn_target(session, MODEL)
            capacity = await calibrate(LoadClient(session, MODEL, self._clock, Tally()), target)
            load = plan_load(self._settings, capacity, source, target.context)
            self._screen.note(describe_load(load, capacity))
            self._asks = make_asks(load.trace, target, self._settings.seed)
            client = LoadClient(session, MODEL, self._clock, self._tally)
            # On a slow machine the measuring itself may have added an instance.
            await self._calm_down("settling", client.now())
            start = client.now()
            await self._send(client, load, start)
            await self._calm_down("waiting for scale-in", start)
            try:
                await complete_story(stack.bus, self._story, MODEL, self._clock)
            except BusError as error:
                self._screen.note(f"the planner's records are missing from the report: {error}")
            end = client.now()
            again = await self._ask_again(LoadClient(session, MODEL, self._clock, Tally()), start)
            incidents = sorted(befell + deaths(self._story), key=lambda each: each.at)
        return DemoResult(
            *(load, capacity, self._asks, self._records, self._story, start, end), again=again, incidents=incidents
        )

    async def _ask_again(self, client: LoadClient, start: float) -> list[RequestRecord]:
        """Send the requests again one at a time, so that each runs alone."""
        asks = choose_again(self._asks, self._records, self._story.newcomers(start))
        self._screen.note(f"asking {len(asks)} of the requests again, undisturbed")
        return [await client.fetch(ask, client.now()) for ask in asks]

    async def _calm_down(self, phase: str, start: float) -> None:
        """Wait until one instance serves and nothing moves, a minute at most."""
        deadline = self._clock.now() + CALM_SECONDS
        while not (self._story.settled() and self._story.serving() == 1):
            if self._clock.now() > deadline:
                serving = self._story.serving()
                self._screen.note(f"{phase}: {serving} instances still serve after {CALM_SECONDS:.0f} s")
                return
            self._show(phase, start, None)
            await asyncio.sleep(REFRESH_SECONDS)

    async def _send(self, client: LoadClient, load: DemoLoad, start: float) -> None:
        """Send the whole load, and show it on the screen while it runs."""

        async def show() -> None:
            while True:
                self._show(phase_name(load, self._clock.wall() - start), start, load.seconds)
                await asyncio.sleep(REFRESH_SECONDS)

        showing = asyncio.create_task(show(), name="show")
        try:
            await send_open_loop(client, self._asks, self._records)
        finally:
            showing.cancel()
            await asyncio.wait([showing])

    def _show(self, phase: str, start: float, seconds: float | None) -> None:
        now = self._clock.wall()
        elapsed = max(0.0, now - start)
        self._screen.show(ScreenView(phase, elapsed, seconds, len(self._asks), now, self._story, self._tally))


def deaths(story: Story) -> list[RunIncident]:
    """The deaths that the registry announced: also of processes that run, and were silent for too long."""
    return [RunIncident(change.at, "death", describe(change) or "") for change in story.deaths]


def make_stack_settings(settings: DemoSettings, checkpoint: Path) -> StackSettings:
    """A system of its own: free ports, an arena that fits the model, links slow enough to watch."""
    parameters = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
    return StackSettings(
        models=(ModelSettings(name=MODEL, path=str(checkpoint)),),
        workers=settings.workers,
        port=0,
        device="cpu",  # the same everywhere
        dtype=settings.dtype,
        # Twice for bfloat16 that becomes float32, and some for alignment.
        arena_bytes=2 * parameters + 16 * MIB,
        transport=settings.transport,
        link_rate=settings.link_rate,
        enable_prefix_caching=False,  # what is asked again in the end has to be computed again
        # Each scale is to show parameters arriving, also after measuring has added an instance and given it back.
        keep_parameters=False,
        live=settings.live,
        live_every_hop=settings.live_every_hop,
        live_when=settings.live_when,
        ttft_slo=settings.ttft_slo,
    )


def phase_name(load: DemoLoad, elapsed: float) -> str:
    if elapsed < load.burst.start:
        return "calm"
    return "burst" if elapsed < (load.burst.end or load.seconds) else "calm"


def describe_load(load: DemoLoad, capacity: MeasuredRates) -> str:
    mean = sum(capacity.seconds(arrival) for arrival in load.trace) / len(load.trace)
    scales = "" if load.rate_scale is None else f"; rate x {load.rate_scale:.3g}, lengths x {load.length_scale:.3g}"
    return (
        f"one worker here: {capacity.prefill_rate:.0f} prompt tokens/s, {capacity.decode_rate:.0f} output tokens/s, "
        f"{duration(mean)} a request. The load: {len(load.trace)} requests in {load.seconds:.0f} s, the burst from "
        f"{load.burst.start:.0f} to {load.burst.end:.0f} s{scales}"
    )
