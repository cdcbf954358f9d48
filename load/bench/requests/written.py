"""Answers by many schemas, of a running system, undisturbed and while a worker is killed."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from livescale.load.bench.record import Record, measured
from livescale.load.bench.requests.schemas import Schema, make_schema
from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.system import MIB, MODEL, Launcher
from livescale.load.client import open_session

BENCH = "requests"
MOST_TOKENS = 1_024
AT_ONCE = 16
ANSWER_SECONDS = 300.0
ENDING = 0.9  # of all answers
KILLED_AFTER = 0.4  # of all answers


@dataclass(frozen=True)
class Written:
    """An answer by schema `number`: its tokens and text, and why it ended."""

    number: int
    tokens: list[int]
    text: str
    finish_reason: str

    @property
    def is_valid(self) -> bool:
        """Whether the generated text is JSON that the request's own schema allows."""
        try:
            from jsonschema_rs import is_valid
        except ImportError:
            raise BenchFailed("jsonschema-rs is missing: pip install jsonschema-rs") from None
        try:
            return bool(is_valid(make_schema(self.number), msgspec.json.decode(self.text)))
        except msgspec.DecodeError:
            return False


async def measure_answers(launcher: Launcher, checkpoint: Path, schemas: int, seeds: int) -> Sequence[Record]:
    """Ask for `seeds` answers by each schema, twice; the second time a worker is killed in the middle."""
    two = {"min_instances": 2, "max_instances": 2}
    wanted = [(number, seed) for seed in range(seeds) for number in range(schemas)]
    async with launcher.start(checkpoint, two, workers=2, kv_bytes=256 * MIB, max_model_len=MOST_TOKENS + 64) as system:
        launcher.progress(f"{len(wanted)} answers by {schemas} schemas")
        answers = await Asking(system.url).all(wanted)
        launcher.progress("the same, and a worker is killed")
        victim = system.pid("worker-0")
        disturbed = Asking(system.url, int(KILLED_AFTER * len(wanted)), lambda: os.kill(victim, signal.SIGKILL))
        again = await disturbed.all(wanted)
    ended = [one for one in answers if one.finish_reason == "stop"]
    valid = [one for one in ended if one.is_valid]
    same = [one for one, other in zip(answers, again, strict=True) if one == other]
    return [
        measured(BENCH, "answers that end", len(ended), "answers", len(answers), at_least=ENDING),
        measured(BENCH, "of these valid", len(valid), "answers", len(ended), at_least=1.0),
        measured(BENCH, "same with a worker killed", len(same), "answers", len(answers), at_least=1.0),
    ]


class Asking:
    """Asks for answers, some at a time; once `after` of them are here, `disturb` is called."""

    def __init__(self, url: str, after: int = -1, disturb: Callable[[], None] = lambda: None) -> None:
        self._url = url
        self._after = after
        self._disturb = disturb
        self._here = 0
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def all(self, wanted: Sequence[tuple[int, int]]) -> list[Written]:
        """The answers by these schemas with these seeds, in order. Raises BenchFailed."""
        async with open_session(self._url, "", ANSWER_SECONDS) as session:
            return list(await asyncio.gather(*(self._one(session, *one) for one in wanted)))

    async def _one(self, session: aiohttp.ClientSession, number: int, seed: int) -> Written:
        async with self._turns:
            async with session.post("v1/completions", json=_body(make_schema(number), seed)) as answer:
                said: Any = await answer.json()
            if answer.status != 200:
                raise BenchFailed(f"schema {number}: {said}")
            self._here += 1
            if self._here == self._after:
                self._disturb()
        [choice] = said["choices"]
        return Written(number, choice["token_ids"], choice["text"], choice["finish_reason"])


def _body(schema: Schema, seed: int) -> dict[str, object]:
    return {
        "model": MODEL,
        "prompt": "A thing:",
        "max_tokens": MOST_TOKENS,
        "temperature": 1.0,
        "seed": seed,
        "return_token_ids": True,
        "response_format": {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}},
    }
