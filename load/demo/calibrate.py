"""What one worker can do here, measured through the gateway in a few seconds."""

import asyncio
import random
from statistics import median

from load.client import Client
from load.demo.plan import Capacity
from load.records import Ask, RequestRecord, find_fault
from load.target import Target

PREFILLS = 5
PREFILL_TOKENS = 256
# About as many as a worker answers at a time in the burst; a larger batch would take longer than it tells.
DECODE_BATCH = 8
DECODE_TOKENS = 32


class CalibrationFailed(Exception):
    """The first requests already failed; says how."""


async def calibrate(client: Client, target: Target) -> Capacity:
    """Prefill from single requests, decode from one small batch: too little to make the monitor scale out."""
    chance = random.Random(0)
    prompt_tokens = min(PREFILL_TOKENS, target.context // 2)
    alone = [await fetch(client, make_ask(chance, target, prompt_tokens, 1)) for _ in range(PREFILLS)]
    # The first request also pays for whatever is done for the first time.
    ttft = median(record.token_at[0] - record.sent for record in alone[1:])
    batch = await asyncio.gather(
        *(fetch(client, make_ask(chance, target, 8, DECODE_TOKENS)) for _ in range(DECODE_BATCH))
    )
    return Capacity(prefill_rate=prompt_tokens / ttft, decode_rate=decode_rate(batch))


def make_ask(chance: random.Random, target: Target, prompt_tokens: int, max_tokens: int) -> Ask:
    return Ask(0, 0.0, chance.choices(target.vocabulary, k=prompt_tokens), max_tokens)


async def fetch(client: Client, ask: Ask) -> RequestRecord:
    record = await client.fetch(ask, client.now())
    if fault := find_fault(record):
        raise CalibrationFailed(f"a first request to try the system failed: {fault}")
    return record


def decode_rate(batch: list[RequestRecord]) -> float:
    """Tokens a second of streams that decode together, from the last one's first token on."""
    start = max(record.token_at[0] for record in batch)
    end = min(record.token_at[-1] for record in batch)
    tokens = sum(start < at <= end for record in batch for at in record.token_at)
    if tokens == 0 or end <= start:
        raise CalibrationFailed("the trial requests did not run together, so the decode rate is not known")
    return tokens / (end - start)
