"""Plays the same requests to systems under virtual time, and counts what was in time. The services are real."""

import asyncio
from collections.abc import Sequence
from statistics import fmean

import msgspec

from livescale.load.bench.roles.modelled_system import (
    INSTANCES,
    MODEL,
    PATH,
    TTFT_SECONDS,
    RolesSystem,
    cluster_settings,
)
from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.load.simulate.client import replay
from livescale.load.simulate.cluster import VirtualCluster, virtual_cluster
from livescale.load.simulate.start import rare_collections, register, until, workers_in
from livescale.services.router.forecast import TTFT_A_TOKEN
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.scaling import SetRole
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import ROLE

START_SECONDS = 600.0
SETTLE_SECONDS = 3.0
MOST_SECONDS = 36_000


class Attained(msgspec.Struct, frozen=True):
    """The shares of requests that were in time: in both ways, with the first token, and with the others on average."""

    both: float
    ttft: float
    tbt: float
    requests: int


def run(system: RolesSystem, asks: Sequence[Ask], seed: int) -> list[RequestRecord]:
    """Play the requests to one system, from its start to the last token."""
    with rare_collections():
        return virtual_time.run(_play(system, asks, seed), limit_seconds=MOST_SECONDS)


def attained(records: Sequence[RequestRecord], tbt_slo: float, after: float = 0.0) -> Attained:
    """What was in time of the requests that came so many seconds after the first one, or later. One that failed was
    not."""
    first = min(one.due for one in records)
    counted = [one for one in records if one.due >= first + after]
    ttft = [_is_first_in_time(one) for one in counted]
    tbt = [find_fault(one) is None and (not one.gaps or fmean(one.gaps) <= tbt_slo) for one in counted]
    both = fmean(first and others for first, others in zip(ttft, tbt, strict=True))
    return Attained(both, fmean(ttft), fmean(tbt), len(counted))


def _is_first_in_time(record: RequestRecord) -> bool:
    limit = TTFT_SECONDS + TTFT_A_TOKEN * record.prompt_tokens
    return find_fault(record) is None and record.ttft is not None and record.ttft <= limit


async def _play(system: RolesSystem, asks: Sequence[Ask], seed: int) -> list[RequestRecord]:
    async with virtual_cluster(cluster_settings(system, seed)) as made:
        await _prepare(made, system)
        return await replay(made.gateway, MODEL, asks)


async def _prepare(cluster: VirtualCluster, system: RolesSystem) -> None:
    """Wait until all instances serve, and give them the roles that are fixed."""
    spec = ModelSpec(name=MODEL, path=PATH, min_instances=INSTANCES, max_instances=INSTANCES)
    await register(cluster, spec)

    async def all_serve() -> bool:
        return len(await workers_in(cluster, "serving")) == INSTANCES

    await until(all_serve, START_SECONDS, every=0.2)
    if system.prefill is not None:
        for number, worker in enumerate(await workers_in(cluster, "serving")):
            order = SetRole(worker=worker, role="prefill" if number < system.prefill else "decode")
            await cluster.operator.call(ROLE, order, timeout=5.0)
    await asyncio.sleep(SETTLE_SECONDS)
