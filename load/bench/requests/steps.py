"""Decode steps whose rows follow schemas, beside steps of as many rows that do not, in one engine."""

import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from llguidance import LLMatcher

from livescale.load.bench.requests.schemas import make_schema
from livescale.load.bench.requests.wide import CONFIG, END, WideModel
from livescale.load.bench.samples import BenchFailed
from livescale.services.gateway.constraints import schema_text
from livescale.services.worker.engine.kernels.variants import Kernels, Pointer, choose_kernels
from livescale.services.worker.grammars.masks import Vocabulary
from livescale.services.worker.scheduling.batch import Batch, Chosen
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.settings import MIB, WorkerSettings
from livescale.shared.messages.requests import Sampling, Submit

if TYPE_CHECKING:  # torch takes seconds to import, and --help needs none
    from livescale.services.worker.engine.runner import EngineRunner

CONTEXT = 320
TOKENS = 200  # of a request at most; the next one takes its place
PROMPT = 8
NEVER = 4e9
KV_BYTES = 1_024 * MIB
WARM_STEPS = 20
KINDS = ("plain", "masked")


@dataclass
class StepTimes:
    """Seconds of steps, by kind of rows, and how often a row got no token as its mask was late. `busy_` are those of a
    processor. `likelihoods` has how many rows of each kind kernels told log-probabilities of."""

    plain: list[float] = field(default_factory=list)
    masked: list[float] = field(default_factory=list)
    busy_plain: list[float] = field(default_factory=list)
    busy_masked: list[float] = field(default_factory=list)
    withheld: int = 0
    likelihoods: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    def of(self, kind: str) -> list[float]:
        return self.plain if kind == "plain" else self.masked

    def busy(self, kind: str) -> list[float]:
        return self.busy_plain if kind == "plain" else self.busy_masked


class CountedKernels:
    """Kernels that count the rows of logits of which they tell how likely tokens are."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self.rows = 0

    def likelihoods(self, type: int, rows: Pointer, row_count: int, /) -> None:
        self.rows += row_count
        self._kernels.likelihoods(type, rows, row_count)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 whatever kernels have
        return getattr(self._kernels, name)


@dataclass(frozen=True)
class WideEngine:
    """An engine that knows a vocabulary of 131,072 tokens, its number of KV blocks, and its kernels, if compiled."""

    runner: "EngineRunner"
    kv_blocks: int
    kernels: CountedKernels | None

    @property
    def rows_told(self) -> int:
        """Of how many rows kernels have told log-probabilities so far."""
        return 0 if self.kernels is None else self.kernels.rows


class StepBench:
    """One engine with `rows` requests of each kind, which take turns."""

    def __init__(
        self, engine: WideEngine, scheduler: Scheduler, rows: int, *, logprobs: int | None, grammars: bool
    ) -> None:
        self._engine = engine
        self._runner = engine.runner
        self._scheduler = scheduler
        self._rows = rows
        self._logprobs = logprobs
        self._grammars = grammars
        self._numbers = count()

    async def run(self, steps: int) -> StepTimes:
        """Measure so many steps of each kind, one after the other."""
        times = StepTimes()
        for kind in _turns(steps + WARM_STEPS):
            await self._fill()
            busy, told = time.process_time(), self._engine.rows_told
            batch, seconds, withheld = await self._step(kind)
            times.likelihoods[kind] += self._engine.rows_told - told
            if len(batch.samplings) == self._rows:
                times.of(kind).append(seconds)
                times.busy(kind).append(time.process_time() - busy)
                times.withheld += withheld
        for kind in KINDS:
            del times.of(kind)[:WARM_STEPS], times.busy(kind)[:WARM_STEPS]
        for request_id in [one.request_id for one in self._scheduler.running()]:
            self._scheduler.cancel(request_id)
            self._runner.forget_masks(request_id)
        return times

    async def _fill(self) -> None:
        """Have all requests of both kinds, prefilled."""
        for kind in KINDS:
            here = sum(one.request_id.startswith(kind) for one in self._scheduler.running())
            for _ in range(self._rows - here):
                await self._add(kind)
        while any(not one.decodes for one in self._scheduler.in_order):
            self._hold(lambda request_id, decodes: decodes)
            batch = self._scheduler.next_batch()
            assert batch is not None
            self._complete(batch, await self._runner.step(batch))

    async def _add(self, kind: str) -> None:
        number = next(self._numbers)
        grammar = ""
        if kind == "masked" and self._grammars:
            grammar = LLMatcher.grammar_from_json_schema(schema_text(make_schema(number)))
        request = Submit(
            request_id=f"{kind}-{number}",
            model="wide",
            gateway="none",
            prompt=[1_000 + number] * PROMPT,
            sampling=Sampling(grammar=grammar, logprobs=self._logprobs if kind == "masked" else None),
            max_tokens=TOKENS,
            stop_token_ids=[END],
            deadline=NEVER,
        )
        self._scheduler.add(request)
        if grammar:
            await self._runner.first_mask(request, ())

    async def _step(self, kind: str) -> tuple[Batch, float, int]:
        self._hold(lambda request_id, decodes: not request_id.startswith(kind))
        batch = self._scheduler.next_batch()
        assert batch is not None
        begun = time.perf_counter()
        chosen = await self._runner.step(batch)
        seconds = time.perf_counter() - begun
        self._complete(batch, chosen)
        return batch, seconds, len(chosen.withheld)

    def _hold(self, holds: Callable[[str, bool], bool]) -> None:
        for one in self._scheduler.placed:
            one.held = holds(one.request_id, one.decodes)

    def _complete(self, batch: Batch, chosen: Chosen) -> None:
        for output in self._scheduler.complete(batch, chosen, time.time()):
            if output.row.finish_reason is not None:
                self._runner.forget_masks(output.row.request_id)
            if output.row.finish_reason == "error":
                raise BenchFailed(f"{output.row.request_id}: {output.row.error}")


def _turns(steps: int) -> Iterator[str]:
    for _ in range(steps):
        yield from KINDS


@asynccontextmanager
async def wide_engine(model: WideModel, tokenizer: bytes) -> AsyncIterator[WideEngine]:
    """An engine of the model that knows its vocabulary."""
    from livescale.services.worker.engine.runner import EngineRunner

    settings = WorkerSettings(kv_bytes=KV_BYTES)
    kernels, counted = choose_kernels("auto", settings.threads), None
    if kernels.kernels is not None:
        counted = CountedKernels(kernels.kernels)
        kernels = replace(kernels, kernels=cast(Kernels, counted))
    runner = EngineRunner(settings.kv_bytes, settings.block_size, settings.threads, kernels=kernels)
    try:
        kv_blocks = await runner.load(model.manifest, CONTEXT)
        for index, view in enumerate(model.memory):
            await runner.add_block(index, view)
        await runner.learn(Vocabulary(zlib.compress(tokenizer, 1), (END,)), CONFIG.vocab_size)
        yield WideEngine(runner, kv_blocks, counted)
    finally:
        await runner.unload()
        await runner.close()


async def measure_steps(
    engine: WideEngine, rows: int, steps: int, logprobs: int | None = None, grammars: bool = True
) -> StepTimes:
    """Measure steps of so many rows; with `logprobs` the rows that are compared tell them, with or without grammars."""
    settings = WorkerSettings(kv_bytes=KV_BYTES, max_num_seqs=2 * rows)
    limits = settings.limits(CONFIG, CONTEXT, engine.kv_blocks)
    return await StepBench(engine, Scheduler(limits), rows, logprobs=logprobs, grammars=grammars).run(steps)
