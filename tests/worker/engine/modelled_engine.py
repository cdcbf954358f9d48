"""A modelled engine, the model that it pretends to run, and prompts for it."""

from typing import Any

from livescale.services.worker.engine.contract import AdapterData
from livescale.services.worker.scheduling.batch import NO_BYTES, LayerEntry, ScheduledChunk, TokenSampling
from livescale.shared.messages.requests import Sampling, Submit
from tests.worker.engine.made_up import (
    VOCABULARY,
    loaded,
    made_up_tokens,
    manifest,
    serve,
)


async def alone(request: Submit, version: str = "v1") -> list[int]:
    runner = await loaded(version)
    if request.adapter is not None:
        await runner.add_adapter(AdapterData(manifest(request.adapter.version), NO_BYTES))
    tokens = (await serve(runner, request)).tokens[request.request_id]
    assert tokens == made_up_tokens(version, VOCABULARY, request)[len(request.generated) :]
    return tokens


def chunk(tokens: list[int], start: int = 0, entry: LayerEntry | None = None, **fields: Any) -> ScheduledChunk:
    return ScheduledChunk(
        "a", tuple(tokens), start, range(2, 16), start >= 128, TokenSampling(Sampling(), 0), entry, **fields
    )
