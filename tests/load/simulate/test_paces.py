"""How long tokens of a stream wait for prompts of others while instances are added, in steps of decodes alone."""

import pytest
from msgspec.structs import replace

from livescale.load.simulate.client import replay
from livescale.load.simulate.cluster import virtual_cluster
from livescale.load.simulate.start import quiet
from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.engine.modelled_steps import step_seconds
from livescale.services.worker.scheduling.batch import Batch, Chosen
from livescale.shared.model.latency import find_latency
from livescale.shared.simulation import virtual_time
from tests.load.simulate.clusters import CONFIG, asks, registered, settings, until_serving

LATENCY = find_latency("llama3-8b-a100")
ASKS = asks(150, rate=60.0, prompt=1500, tokens=20)
MOST_STEPS = 2.0  # where the default of --tbt-ratio is 1.85, and the pace is an estimate


async def scale_out() -> None:
    told = settings(4)
    worker = replace(told.worker, engine_profile="llama3-8b-a100", max_num_batched_tokens=2_048)
    async with virtual_cluster(replace(told, worker=worker)) as made:
        await registered(made, max_instances=4)
        await replay(made.gateway, "m", ASKS)
        await until_serving(made, 4)


def steps_of(batch: Batch) -> float:
    """How many steps of its decodes alone this one takes."""
    decodes = tuple(chunk for chunk in batch.chunks if chunk.decode)
    layers = CONFIG.num_hidden_layers
    return step_seconds(LATENCY, batch, layers) / step_seconds(LATENCY, replace(batch, chunks=decodes), layers)


def test_no_stream_waits_for_whole_prompts_that_were_run_in_part_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    step, batches = ModelledRunner.step, list[Batch]()

    async def run(runner: ModelledRunner, batch: Batch) -> Chosen:
        batches.append(batch)
        return await step(runner, batch)

    monkeypatch.setattr(ModelledRunner, "step", run)
    with quiet():
        virtual_time.run(scale_out(), limit_seconds=300)
    shared = [batch for batch in batches if any(chunk.layer for chunk in batch.chunks) and batch.decode_rows]
    assert len(shared) >= 10
    longest = max((batch for batch in batches if batch.decode_rows), key=steps_of)
    assert steps_of(longest) <= MOST_STEPS
