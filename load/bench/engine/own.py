"""The process of `livescale bench engine` that runs a worker's scheduler and engine; it is asked as its peers are."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar, cast
from unittest.mock import patch

import msgspec
import torch
import uvloop

from livescale.load.engine_alone import EngineAlone, running
from livescale.load.peers.engine_process import Stopwatch, ask_engine, serve
from livescale.load.peers.protocol import (
    Answer,
    AskKept,
    AskMixed,
    GreedyTokens,
    Kept,
    Mixed,
    Prompts,
    Question,
    Ready,
    StartEngine,
    StepSeconds,
)
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.engine.kernels.variants import Kernels, KernelsName, choose_kernels
from livescale.services.worker.engine.sampling import choose_tokens
from livescale.services.worker.grammars.masks import StepMasks
from livescale.services.worker.runners import runner_maker
from livescale.services.worker.scheduling.batch import Batch, Chosen, TokenSampling, block_bytes
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.memory.arena import Arena, placed_bytes
from livescale.shared.memory.devices import CPU
from livescale.shared.messages.requests import Submit
from livescale.shared.runtime.clock import SystemClock

T = TypeVar("T")

CONTEXT = 2_304  # of the longest prompt, and some tokens
# KV for all rows of 200 steps beside prompts; the rest is what a worker has by default.
SETTINGS = WorkerSettings(max_num_seqs=32, kv_bytes=2 << 30, host_kv_bytes=256 << 20)
NEVER = 4e9
MOST_TOKENS = 2_000  # of a request that decodes: it is cancelled once that was measured


@dataclass(frozen=True)
class StepEnd:
    """A step: the process's CPU time and the clock at its end."""

    cpu: float
    wall: float
    prefill_rows: int = 0
    decode_rows: int = 0


class Steps:
    """Records when each step ends, from now on; `rows` is the number of rows that decode."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._ended = [StepEnd(time.process_time(), time.monotonic())]
        self._more = asyncio.Event()

    def add(self, batch: Batch) -> None:
        self._ended.append(StepEnd(time.process_time(), time.monotonic(), batch.prefill_rows, batch.decode_rows))
        self._more.set()
        self._more.clear()

    async def more(self) -> None:
        """Wait until one more step has ended, whatever it ran."""
        await self._more.wait()

    def alone(self, count: int) -> StepSeconds:
        """The first of the steps in which all decoded and nothing else ran."""
        pairs = list(pairwise(self._ended))
        return _between([pair for pair in pairs if self._is_alone(pair[1])][:count])

    def between_tokens(self) -> StepSeconds:
        """The steps from each one in which all rows decoded to the next such, whatever else ran between."""
        decoding = [self._ended[0], *(one for one in self._ended[1:] if one.decode_rows == self._rows)]
        return _between(list(pairwise(decoding)))

    @property
    def decoded(self) -> int:
        return sum(one.decode_rows for one in self._ended)

    def _is_alone(self, step: StepEnd) -> bool:
        return step.decode_rows == self._rows and step.prefill_rows == 0


def _between(pairs: Sequence[tuple[StepEnd, StepEnd]]) -> StepSeconds:
    return StepSeconds([after.cpu - before.cpu for before, after in pairs], sum(b.wall - a.wall for a, b in pairs))


async def measure_kept(runner: Runner, limits: SchedulerLimits, prompt: list[int]) -> Kept:
    """The prompt, and the same again, in a KV cache that has room for what is kept, and in one that has none."""
    none, cached = await _ask_twice(runner, replace(limits, host_kv_blocks=0), prompt)
    _, fetched = await _ask_twice(runner, replace(limits, kv_blocks=limits.blocks(len(prompt) + 1)), prompt)
    return Kept(none, cached, fetched)


async def _ask_twice(runner: Runner, limits: SchedulerLimits, prompt: list[int]) -> list[StepSeconds]:
    """Send the prompt twice, one after the other, and measure the time to the first token of each."""
    scheduler = Scheduler(limits)
    scheduler.keep_prefixes()
    took = []
    async with running(EngineAlone(runner, scheduler)) as engine:
        for name in ("first", "again"):
            request = Submit(
                request_id=name, model="bench", gateway="none", prompt=prompt, max_tokens=1, deadline=NEVER
            )
            watch = Stopwatch()
            await engine.ask(request)
            watch.mark()
            took.append(watch.took())
    return took


class Own:
    """The model is loaded as a worker does it: memory first, then block after block as it would arrive."""

    def __init__(self, start: StartEngine) -> None:
        self._loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._names = itertools.count()
        self._steps = Steps(0)
        self.ready = self._loop.run(self._load(start))

    async def _load(self, start: StartEngine) -> Ready:
        assert start.dtype != "float64"
        checkpoint = open_checkpoint(Path(start.checkpoint), start.dtype, 1, "panels", start.kv_cache_dtype)
        sizes = [block.size_bytes for block in checkpoint.layouts]
        memory = Arena(placed_bytes(sizes)).place(sizes)
        settings = msgspec.structs.replace(SETTINGS, arena_bytes=placed_bytes(sizes))
        kernels = choose_kernels(cast(KernelsName, start.kernels), settings.threads)
        runner = runner_maker(settings, CPU, kernels=kernels)(SystemClock())
        await runner.ready()
        manifest = checkpoint.manifest([checkpoint.read_block(index, view) for index, view in enumerate(memory)])
        kv_blocks = await runner.load(manifest, CONTEXT)
        for index, view in enumerate(memory):
            began = time.monotonic()
            await runner.add_block(index, view)
        last_block = time.monotonic() - began
        host_kv_blocks = SETTINGS.host_kv_bytes // block_bytes(manifest, SETTINGS.block_size)
        limits = SETTINGS.limits(manifest.config, CONTEXT, kv_blocks, host_kv_blocks)
        self._runner, self._limits = runner, limits
        self._engine = EngineAlone(runner, Scheduler(limits), lambda batch: self._steps.add(batch))
        self._running = asyncio.create_task(self._engine.run())  # whenever the loop runs
        return Ready(time.monotonic() - start.began, last_block, kernels.variant)

    def answer(self, question: Question) -> Answer:
        if isinstance(question, AskMixed):
            return self._run(self._mix(question))
        if isinstance(question, AskKept):
            return self._run(measure_kept(self._runner, self._limits, question.prompt))
        return ask_engine(self, question)

    def greedy(self, prompt: list[int], tokens: int) -> GreedyTokens:
        """Logits are seen where the engine chooses from them."""
        seen: list[bytes] = []

        def see(
            logits: torch.Tensor, samplings: Sequence[TokenSampling], permitted: StepMasks, kernels: Kernels | None
        ) -> Chosen:
            seen.append(logits[0].float().numpy().tobytes())
            return choose_tokens(logits, samplings, permitted, kernels)

        with patch("livescale.services.worker.engine.head.choose_tokens", see):
            chosen = self._run(self._ask([prompt], tokens))
        return GreedyTokens(chosen[0], seen)

    def prefill(self, prompts: Prompts) -> StepSeconds:
        """Inside of the loop: to start and stop one is no part of it."""

        async def measured() -> StepSeconds:
            watch = Stopwatch()
            await self._ask(prompts, 1)
            watch.mark()
            return watch.took()

        return self._run(measured())

    def decode(self, prompts: Prompts, steps: int) -> StepSeconds:
        """Measure steps in which all rows decode and nothing else runs."""

        async def alone() -> StepSeconds:
            async with self._decoding(prompts, steps) as took:
                return took

        return self._run(alone())

    def _run(self, work: Coroutine[None, None, T]) -> T:
        return self._loop.run(self._unless_steps_fail(work))

    async def _unless_steps_fail(self, work: Coroutine[None, None, T]) -> T:
        task = asyncio.ensure_future(work)
        await asyncio.wait([task, self._running], return_when=asyncio.FIRST_COMPLETED)
        if self._running.done():
            task.cancel()
            self._running.result()
        return task.result()

    async def _mix(self, question: AskMixed) -> Mixed:
        prompts = Stopwatch()
        await self._ask_in_turn(question.prompts)
        prompts.mark()
        apart = prompts.took()
        async with self._decoding(question.decoding, question.steps) as alone:
            self._steps = Steps(len(question.decoding))
            prompted = 0
            for beside in others_like(question.prompts):
                await self._ask_in_turn([beside])
                prompted += len(beside)
                if len((both := self._steps.between_tokens()).steps) >= question.steps:
                    break
            decoded = self._steps.decoded
        return Mixed(alone, apart, both, decoded, prompted)

    @asynccontextmanager
    async def _decoding(self, prompts: Prompts, steps: int) -> AsyncIterator[StepSeconds]:
        """These decode as long as the block of code; first so many steps in which they do so alone."""
        requests = [self._request(prompt, MOST_TOKENS) for prompt in prompts]
        async with asyncio.TaskGroup() as tasks:
            self._steps = Steps(len(prompts))
            for request in requests:
                tasks.create_task(self._engine.ask(request))
            while len((alone := self._steps.alone(steps)).steps) < steps:
                await self._steps.more()
            yield alone
            for request in requests:
                self._engine.cancel(request.request_id)
        await self._engine.idle.wait()

    async def _ask(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        """Send all requests at the same time, and wait for their tokens."""
        self._steps = Steps(len(prompts))
        return await asyncio.gather(*(self._engine.ask(self._request(prompt, tokens)) for prompt in prompts))

    async def _ask_in_turn(self, prompts: Prompts) -> None:
        for prompt in prompts:
            await self._engine.ask(self._request(prompt, 1))

    def _request(self, prompt: list[int], tokens: int) -> Submit:
        name = f"r{next(self._names)}"
        return Submit(request_id=name, model="bench", gateway="none", prompt=prompt, max_tokens=tokens, deadline=NEVER)


def others_like(prompts: Prompts) -> Iterator[list[int]]:
    """Endless prompts of the same lengths, one after the other. None begins as an earlier one: kept prefixes are of no
    use."""
    for turn in itertools.count(1):
        for prompt in prompts:
            place = turn % len(prompt)
            yield [*prompt[place:], *prompt[:place]]


def main(descriptor: int) -> None:
    serve(descriptor, Own)
