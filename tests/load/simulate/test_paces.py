"""How long tokens of a stream wait for prompts of others while instances are added, in steps of decodes alone."""

from collections.abc import Callable, Coroutine

import pytest
from msgspec.structs import replace

from livescale.load.simulate.client import replay
from livescale.load.simulate.cluster import virtual_cluster
from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.load.simulate.start import quiet
from livescale.services.planner.settings import PlannerSettings
from livescale.services.router.settings import RouterSettings
from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.engine.modelled_steps import step_seconds
from livescale.services.worker.scheduling.batch import Batch, Chosen
from livescale.shared.model.latency import find_latency
from livescale.shared.simulation import virtual_time
from tests.load.simulate.clusters import CONFIG, asks, registered, settings, until_serving

LATENCY = find_latency("llama3-8b-a100")
ASKS = asks(150, rate=60.0, prompt=1500, tokens=20)
MOST_STEPS = 2.0  # where the default of --tbt-ratio is 1.85, and the pace is an estimate
SLO = 0.06  # five steps of decodes alone


def paced(workers: int) -> VirtualClusterSettings:
    told = settings(workers)
    worker = replace(told.worker, engine_profile="llama3-8b-a100", max_num_batched_tokens=2_048)
    return replace(told, worker=worker)


async def scale_out() -> None:
    async with virtual_cluster(paced(4)) as made:
        await registered(made, max_instances=4)
        await replay(made.gateway, "m", ASKS)
        await until_serving(made, 4)


async def overload() -> None:
    planner = PlannerSettings(live="off", disaggregation="auto", tbt_slo=SLO)
    router = RouterSettings(disaggregation="auto", tbt_slo=SLO)
    async with virtual_cluster(replace(paced(1), planner=planner, router=router)) as made:
        await registered(made, max_instances=1)
        await replay(made.gateway, "m", ASKS[:60])


def batches_of(monkeypatch: pytest.MonkeyPatch, play: Callable[[], Coroutine[None, None, None]]) -> list[Batch]:
    """What all workers ran."""
    step, batches = ModelledRunner.step, list[Batch]()

    async def run(runner: ModelledRunner, batch: Batch) -> Chosen:
        batches.append(batch)
        return await step(runner, batch)

    monkeypatch.setattr(ModelledRunner, "step", run)
    with quiet():
        virtual_time.run(play(), limit_seconds=300)
    return batches


def seconds_of(batch: Batch) -> float:
    return step_seconds(LATENCY, batch, CONFIG.num_hidden_layers)


def steps_of(batch: Batch) -> float:
    """How many steps of its decodes alone this one takes."""
    decodes = tuple(chunk for chunk in batch.chunks if chunk.decode)
    return seconds_of(batch) / seconds_of(replace(batch, chunks=decodes))


def test_no_stream_waits_for_whole_prompts_that_were_run_in_part_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = batches_of(monkeypatch, scale_out)
    shared = [batch for batch in batches if any(chunk.layer for chunk in batch.chunks) and batch.decode_rows]
    assert len(shared) >= 10
    longest = max((batch for batch in batches if batch.decode_rows), key=steps_of)
    assert steps_of(longest) <= MOST_STEPS


def test_where_the_router_gives_roles_prompts_have_what_decodes_leave_of_the_slo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = batches_of(monkeypatch, overload)
    longest = max((batch for batch in batches if batch.decode_rows), key=seconds_of)
    assert 0.9 * SLO <= seconds_of(longest) <= 1.05 * SLO  # the pace is an estimate
    assert steps_of(longest) > 2 * MOST_STEPS
