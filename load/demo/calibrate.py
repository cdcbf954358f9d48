"""What one worker can do here, measured through the gateway in a few seconds."""

import asyncio
import random
from statistics import median

from livescale.load.client import Client
from livescale.load.demo.plan import Capacity
from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.load.target import Target

PREFILLS = 5
PREFILL_TOKENS = 256
# About as many as a worker answers at a time in the burst; a larger batch would take longer than it tells.
DECODE_BATCH = 8
DECODE_TOKENS = 32
DECODE_TRIES = 3


class CalibrationFailed(Exception):
    """The first requests already failed; says how."""


async def calibrate(client: Client, target: Target) -> Capacity:
    """Prefill from single requests, decode from one small batch: too little to make the monitor scale out."""
    chance = random.Random(0)
    prompt_tokens = min(PREFILL_TOKENS, target.context // 2)
    alone = [await fetch(client, make_ask(chance, target, prompt_tokens, 1)) for _ in range(PREFILLS)]
    # The first request also pays for whatever is done for the first time.
    ttft = median(record.token_at[0] - record.sent for record in alone[1:])
    decoded = await measure_decode(client, target, chance)
    return Capacity(prefill_rate=prompt_tokens / ttft, decode_rate=decoded)


async def measure_decode(client: Client, target: Target, chance: random.Random) -> float:
    """Tokens a second of a batch; longer answers are tried while a stall, say, keeps the streams apart."""
    tokens = DECODE_TOKENS
    for _ in range(DECODE_TRIES):
        asks = [make_ask(chance, target, 8, tokens) for _ in range(DECODE_BATCH)]
        batch = await asyncio.gather(*(fetch(client, ask) for ask in asks))
        if rate := rate_together(batch):
            return rate
        tokens = min(2 * tokens, target.context - 8)
    return rate_apart(batch)


def make_ask(chance: random.Random, target: Target, prompt_tokens: int, max_tokens: int) -> Ask:
    return Ask(0, 0.0, chance.choices(target.vocabulary, k=prompt_tokens), max_tokens)


async def fetch(client: Client, ask: Ask) -> RequestRecord:
    record = await client.fetch(ask, client.now())
    if fault := find_fault(record):
        raise CalibrationFailed(f"a first request to try the system failed: {fault}")
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
