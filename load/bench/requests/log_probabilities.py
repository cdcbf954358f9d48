"""Log-probabilities of streams that a system batches, hands over and resubmits, beside those of undisturbed ones."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from livescale.load.bench.record import Record, measured
from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.system import BY_HAND, MIB, MODEL, BenchSystem, Launcher
from livescale.load.client import open_session
from livescale.shared.messages.transfers import LiveMode

BENCH = "requests"
WORKERS, RANKS = 4, 2
TOKENS, LOGPROBS = 32, 5
ROOM, AT_ONCE = 32, 16  # requests that a worker runs, and fewer that are asked for in a scale: a full one takes none
LINK_RATE = 1e6  # bytes a second, so that the tiny model takes some seconds
KILLED_AFTER = 0.3  # of all answers
ANSWER_SECONDS = 300.0
# How requests come to an instance that loads, how many instances there are then, and the metric that counts it.
SCALES: tuple[tuple[str, LiveMode, int, str], ...] = (
    ("ZigZag", "zigzag", 2, "livescale_worker_pulled_tasks_total"),
    ("a pipeline", "pipeline", WORKERS, "livescale_worker_pipeline_steps_total"),
)


@dataclass(frozen=True)
class ToldAnswer:
    """An answer: its tokens, and what was told of how likely these and others were. JSON keeps every bit."""

    tokens: list[int]
    logprobs: dict[str, Any]


async def measure_log_probabilities(launcher: Launcher, checkpoint: Path, streams: int) -> list[Record]:
    """Ask for the same streams one at a time, and again under each disturbance. Raises BenchFailed where one of these
    did not happen."""
    progress, records = launcher.progress, []
    async with _system(launcher, checkpoint, 1) as system:
        progress(f"{streams} streams with log-probabilities, one at a time")
        alone = await system.ask(streams, at_once=1)
        progress("the same at once")
        records.append(compared("batching", alone, await system.ask(streams)))
        for name, mode, instances, metric in SCALES:
            progress(f"the same while {instances} instances come by {name}")
            records.append(compared(name, alone, await system.scale(streams, mode, instances, metric)))
        progress("the same, and a worker is killed")
        records.append(compared("a kill", alone, await system.kill(streams)))
    async with _system(launcher, checkpoint, RANKS) as system:
        progress(f"{streams} streams at an instance of {RANKS} workers, one at a time and at once")
        alone = await system.ask(streams, at_once=1)
        records.append(compared(f"batching at tensor parallel {RANKS}", alone, await system.ask(streams)))
    return records


def compared(
    disturbance: str, alone: Sequence[Sequence[ToldAnswer]], disturbed: Sequence[Sequence[ToldAnswer]]
) -> Record:
    """How many streams were told the same each time as the one time alone."""
    same = sum(all(one == first for one in others) for (first,), others in zip(alone, disturbed, strict=True))
    return measured(BENCH, f"same log-probabilities through {disturbance}", same, "streams", len(alone), at_least=1.0)


@dataclass
class LogProbabilitySystem:
    """A system of which only one instance serves, between disturbances."""

    system: BenchSystem
    session: aiohttp.ClientSession

    async def ask(
        self, streams: int, at_once: int = 0, after: int = -1, disturb: Callable[[], None] = lambda: None
    ) -> list[list[ToldAnswer]]:
        """The answer to each stream, in order. `disturb` is called once `after` of them are here."""
        turns, here = asyncio.Semaphore(at_once or streams), count(1)

        async def ask_one(number: int) -> list[ToldAnswer]:
            async with turns:
                told = await _ask(self.session, number)
            if next(here) == after:
                disturb()
            return [told]

        return list(await asyncio.gather(*map(ask_one, range(streams))))

    async def scale(self, streams: int, mode: LiveMode, instances: int, metric: str) -> list[list[ToldAnswer]]:
        """The answers to each stream, which is asked again and again while instances are added; then `metric` has
        grown."""
        before, told = await self._count(metric), [list[ToldAnswer]() for _ in range(streams)]
        scaling = asyncio.create_task(self.system.scale(instances, mode))
        numbers = takewhile(lambda number: number < streams or not scaling.done(), count())

        async def lane() -> None:
            for number in numbers:
                told[number % streams].append(await _ask(self.session, number % streams))

        await asyncio.gather(*(lane() for _ in range(AT_ONCE)))
        await scaling
        if await self._count(metric) == before:
            raise BenchFailed(f"nothing was disturbed by the scale: {metric} did not grow")
        await self._rest()
        return told

    async def kill(self, streams: int) -> list[list[ToldAnswer]]:
        """The answers to streams during which one of two workers dies."""
        await self.system.scale(2, "off")
        victim = self.system.watch.serving()[0]
        pid = self.system.pid(victim)
        return await self.ask(streams, 0, int(KILLED_AFTER * streams), lambda: os.kill(pid, signal.SIGKILL))

    async def _rest(self) -> None:
        watch = self.system.watch
        await watch.until_quiet()
        await self.system.scale(1)
        await watch.until(lambda: len(watch.serving()) == 1, "one instance is left")

    async def _count(self, metric: str) -> float:
        """The sum of a metric over all workers."""
        texts = [await self.system.metrics(worker) for worker in self.system.watch.workers]
        return sum(metric_values(texts, metric))


def metric_values(texts: Sequence[str], metric: str) -> Iterator[float]:
    """The values of a metric in what processes expose."""
    for text in texts:
        for family in text_string_to_metric_families(text):
            yield from (sample.value for sample in family.samples if sample.name == metric)


@asynccontextmanager
async def _system(launcher: Launcher, checkpoint: Path, ranks: int) -> AsyncIterator[LogProbabilitySystem]:
    workers = WORKERS if ranks == 1 else ranks
    async with launcher.start(
        checkpoint,
        BY_HAND,
        workers=workers,
        tensor_parallel_size=ranks,
        dtype="float32",
        kv_bytes=128 * MIB,
        worker_options={"max_num_seqs": ROOM},
        link_rate=LINK_RATE,
        keep_parameters=False,  # each scale is to move them
        enable_prefix_caching=False,  # the same prompts are asked again and again
    ) as system:
        watch = system.watch
        await watch.until(
            lambda: len(watch.workers) == workers and len(watch.serving()) == ranks, "one instance serves"
        )
        async with open_session(system.url, "", ANSWER_SECONDS) as session:
            yield LogProbabilitySystem(system, session)


async def _ask(session: aiohttp.ClientSession, number: int) -> ToldAnswer:
    async with session.post("v1/completions", json=request_body(number)) as answer:
        said: Any = await answer.json()
    if answer.status != 200:
        raise BenchFailed(f"stream {number}: {said}")
    [choice] = said["choices"]
    return ToldAnswer(choice["token_ids"], choice["logprobs"])


def request_body(number: int) -> dict[str, object]:
    """Request `number`: a third are greedy, and a third are penalised. Prompts are unlike, some of many tokens."""
    return {
        "model": MODEL,
        "prompt": [3 + (7 * number + place) % 900 for place in range(5 + 37 * number % 170)],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0.0 if number % 3 == 0 else 0.9,
        "presence_penalty": 0.5 if number % 3 == 1 else 0.0,
        "seed": number,
        "logprobs": LOGPROBS,
        "return_token_ids": True,
    }
