"""`--disaggregation auto` in a cluster: what it chooses, that it stays with it, and that nobody's tokens suffer."""

import asyncio
from functools import cache
from itertools import pairwise

import msgspec
import pytest
from msgspec.structs import replace

from livescale.load.records import RequestRecord, find_fault
from livescale.load.simulate.client import replay
from livescale.load.simulate.cluster import VirtualCluster, virtual_cluster
from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.load.simulate.start import flat_topology, quiet
from livescale.services.planner.settings import PlannerSettings
from livescale.services.router.settings import RouterSettings
from livescale.shared.messages.membership import Role, WorkerReport
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import AskSnapshot, Named
from livescale.shared.messages.scaling import AskDecisions, Decisions
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import DECISIONS, MANIFEST, SNAPSHOT
from tests.load.simulate.clusters import asks, registered, settings, undisturbed, until_serving

SPEED = 0.25  # of the engines, so that few requests are a load
TIGHT, LOOSE = 0.054, 0.6  # a step of decodes alone takes 47 ms
WORKERS = 3
ASKS = asks(130, rate=5.0, prompt=900, tokens=24)


class Outcome(msgspec.Struct, frozen=True):
    """What came of a load. `roles` are those of the instances each second, `lost` was killed."""

    records: list[RequestRecord]
    roles: list[list[Role | None]]
    version: str
    reasons: list[str]
    lost: str = ""


def chosen(tbt_slo: float) -> VirtualClusterSettings:
    told = replace(settings(WORKERS), topology=flat_topology(WORKERS, 1e9))
    router = RouterSettings(disaggregation="auto", ttft_slo=1.0, tbt_slo=tbt_slo)
    worker = replace(told.worker, engine_speed=SPEED)
    planner = PlannerSettings(live="off", disaggregation="auto", tbt_slo=tbt_slo)
    return replace(told, router=router, worker=worker, planner=planner)


async def roles(cluster: VirtualCluster) -> list[Role | None]:
    workers: list[WorkerReport] = (await cluster.operator.call(SNAPSHOT, AskSnapshot(), timeout=5.0)).workers
    return sorted((worker.role for worker in workers if worker.state == "serving"), key=str)


async def play(tbt_slo: float, kill: Role | None) -> Outcome:
    async with virtual_cluster(chosen(tbt_slo)) as made:
        await registered(made, min_instances=WORKERS, max_instances=WORKERS)
        await until_serving(made, WORKERS)
        replaying = asyncio.create_task(replay(made.gateway, "m", ASKS))
        seen, lost = list[list[Role | None]](), ""
        while not replaying.done():
            await asyncio.sleep(1.0)
            seen.append(await roles(made))
            if kill in seen[-1] and not lost:
                lost = await last_with(made, kill)
                await made.kill(lost)
        manifest: Manifest = await made.operator.call(MANIFEST, Named(model="m"), timeout=5.0)
        told: Decisions = await made.operator.call(DECISIONS, AskDecisions(model="m"), timeout=5.0)
        reasons = [decision.reason for decision in told.decisions if decision.rule == "roles"]
        return Outcome(replaying.result(), seen, manifest.version, reasons, lost)


async def last_with(cluster: VirtualCluster, role: Role | None) -> str:
    workers: list[WorkerReport] = (await cluster.operator.call(SNAPSHOT, AskSnapshot(), timeout=5.0)).workers
    return max(worker.id for worker in workers if worker.role == role)


@cache
def played(tbt_slo: float, kill: Role | None) -> Outcome:
    with quiet():
        return virtual_time.run(play(tbt_slo, kill), limit_seconds=300)


def changes(outcome: Outcome) -> int:
    return sum(before != after for before, after in pairwise(outcome.roles))


def test_a_tight_pace_splits_the_model_once_and_for_all() -> None:
    outcome = played(TIGHT, None)
    assert outcome.roles[0] == ["colocated"] * WORKERS
    assert outcome.roles[-1] == ["decode", "prefill", "prefill"]
    assert changes(outcome) <= 2  # two looks may see one change half done
    [reason] = outcome.reasons
    assert reason.startswith("2 of 3 prefill: ")


def test_a_loose_pace_leaves_it_as_it_is() -> None:
    outcome = played(LOOSE, None)
    assert changes(outcome) == 0
    assert outcome.reasons == []
    assert outcome.roles[-1] == ["colocated"] * WORKERS


@pytest.mark.parametrize("kill", [None, "prefill", "decode"])
def test_every_request_has_its_tokens_through_a_change_and_a_death(kill: Role | None) -> None:
    outcome = played(TIGHT, kill)
    assert bool(outcome.lost) == (kill is not None)
    assert [find_fault(record) for record in outcome.records] == [None] * len(ASKS)
    for record in outcome.records:
        assert record.token_ids == undisturbed(ASKS[record.index], outcome.version)
