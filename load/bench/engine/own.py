"""The process of `livescale bench engine` that runs a worker's scheduler and engine; it is asked as its peers are."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from unittest.mock import patch

import torch
import uvloop

from livescale.load.bench.engine.kept import NEVER, measure_kept
from livescale.load.bench.engine.load_engine import load_engine
from livescale.load.bench.engine.steps import Steps
from livescale.load.engine_alone import EngineAlone
from livescale.load.peers.engine_process import Stopwatch, ask_engine, serve
from livescale.load.peers.protocol import (
    Answer,
    AskKept,
    AskMixed,
    GreedyTokens,
    Mixed,
    Prompts,
    Question,
    Ready,
    StartEngine,
    StepSeconds,
)
from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.sampling import choose_tokens
from livescale.services.worker.grammars.masks import StepMasks
from livescale.services.worker.scheduling.batch import Chosen, TokenSampling
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.messages.requests import Submit

T = TypeVar("T")

MOST_TOKENS = 2_000  # of a request that decodes: it is cancelled once that was measured


class Own:
    """A worker's scheduler and engine, which answer questions as peers do."""

    def __init__(self, start: StartEngine) -> None:
        self._loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._names = itertools.count()
        self._steps = Steps(0)
        self.ready = self._loop.run(self._load(start))

    async def _load(self, start: StartEngine) -> Ready:
        loaded = await load_engine(start)
        self._runner, self._limits = loaded.runner, loaded.limits
        self._engine = EngineAlone(self._runner, Scheduler(self._limits), lambda batch: self._steps.add(batch))
        self._running = asyncio.create_task(self._engine.run())  # whenever the loop runs
        return loaded.ready

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
