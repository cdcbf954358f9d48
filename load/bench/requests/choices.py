"""How long eight choices of one long prompt take to begin, beside eight prompts, and beside one choice."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import msgspec

from livescale.load.bench.record import Record, measured
from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.system import MODEL, ONE_INSTANCE, Launcher
from livescale.load.client import EventCutter, open_session, read_available

BENCH = "requests"
CHOICES, PROMPT_TOKENS, TOKENS = 8, 1_000, 4
VOCABULARY = 8_000  # of the small model, at least
ANSWER_SECONDS = 120.0
TO_PROMPTS, TO_ONE = 0.25, 1.3
DONE = b"[DONE]"


async def measure_choices(launcher: Launcher, checkpoint: Path, repeats: int) -> Sequence[Record]:
    """Ask in turns for `CHOICES` choices of a prompt, as many prompts, and one choice. No prompt comes twice."""
    seconds: dict[str, list[float]] = {"choices": [], "prompts": [], "one": []}
    async with (
        launcher.start(checkpoint, ONE_INSTANCE, workers=1, max_model_len=PROMPT_TOKENS + 64) as system,
        open_session(system.url, "", ANSWER_SECONDS) as session,
    ):
        numbers = count()
        launcher.progress(f"{repeats} times {CHOICES} choices, {CHOICES} prompts and one choice")
        for repeat in range(-1, repeats):
            taken = {
                "choices": await last_first_token(session, [next(numbers)], CHOICES),
                "prompts": await last_first_token(session, [next(numbers) for _ in range(CHOICES)], 1),
                "one": await last_first_token(session, [next(numbers)], 1),
            }
            if repeat >= 0:  # the first one warms up
                for kind, one in taken.items():
                    seconds[kind].append(one)
    return choice_rows(seconds)


def choice_rows(seconds: Mapping[str, Sequence[float]]) -> Sequence[Record]:
    """Medians of the choices against the others, in milliseconds."""
    choices, prompts, one = (1e3 * median(seconds[kind]) for kind in ("choices", "prompts", "one"))
    case = f"last first token of n = {CHOICES}, {PROMPT_TOKENS} tokens of prompt"
    return [
        measured(BENCH, f"{case}, to {CHOICES} prompts", choices, "ms", prompts, at_most=TO_PROMPTS),
        measured(BENCH, f"{case}, to n = 1", choices, "ms", one, at_most=TO_ONE),
    ]


async def last_first_token(session: aiohttp.ClientSession, prompts: Sequence[int], choices: int) -> float:
    """Seconds until all choices of all of these prompts have a token."""
    begun = time.perf_counter()
    bodies = [request_body(number, choices) for number in prompts]
    return max(await asyncio.gather(*(first_token(session, body, choices) for body in bodies))) - begun


async def first_token(session: aiohttp.ClientSession, body: Mapping[str, object], choices: int = 1) -> float:
    """When the last choice of a streamed request got its first token, by `perf_counter`. Raises BenchFailed."""
    begun = dict[int, float]()
    try:
        async with session.post("v1/completions", json=body) as answer:
            if answer.status != 200:
                raise BenchFailed(await answer.text())
            await _note_all(begun, answer)
    except aiohttp.ClientError as error:
        raise BenchFailed(f"the gateway was lost: {error}") from None
    if len(begun) != choices:
        raise BenchFailed(f"{len(begun)} of {choices} choices began")
    return max(begun.values())


async def _note_all(begun: dict[int, float], answer: aiohttp.ClientResponse) -> None:
    events = EventCutter()
    async for data in read_available(answer):
        now = time.perf_counter()
        for event in events.feed(data):
            if event != DONE:
                note_tokens(begun, msgspec.json.decode(event), now)


def note_tokens(begun: dict[int, float], event: Mapping[str, Any], now: float) -> None:
    """Note which choices begin with an event that came now. Raises BenchFailed for an error."""
    if "error" in event:
        raise BenchFailed(event["error"]["message"])
    for choice in event["choices"]:
        if choice["token_ids"]:
            begun.setdefault(choice["index"], now)


def request_body(number: int, choices: int) -> dict[str, object]:
    """A request for so many choices of prompt `number`."""
    return {
        "model": MODEL,
        "prompt": random.Random(number).choices(range(10, VOCABULARY), k=PROMPT_TOKENS),
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0.9,
        "seed": number,
        "n": choices,
        "stream": True,
        "return_token_ids": True,
    }
