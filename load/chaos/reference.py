"""What an undisturbed engine generates for the same requests."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from livescale.load.bench.engine_alone import EngineAlone, engine_alone
from livescale.load.records import Ask
from livescale.shared.messages.parameters import DType, Layout
from livescale.shared.messages.requests import Sampling, Submit

NEVER = 4e9


async def undisturbed(
    checkpoint: Path, dtype: DType, asks: Sequence[Ask], layout: Layout = "plain"
) -> dict[int, list[int]]:
    """Token ids by the requests' indices, from one engine in this process."""
    async with engine_alone(checkpoint, dtype, layout) as engine:
        answers = await asyncio.gather(*(_ask(engine, ask) for ask in asks))
    return {ask.index: tokens for ask, tokens in zip(asks, answers, strict=True)}


async def _ask(engine: EngineAlone, ask: Ask) -> list[int]:
    return await engine.ask(
        Submit(
            request_id=str(ask.index),
            model="alone",
            gateway="none",
            prompt=ask.prompt,
            sampling=Sampling(temperature=ask.temperature, seed=ask.seed),
            max_tokens=ask.max_tokens,
            deadline=NEVER,
        )
    )
