"""Eight instances under virtual time, which differ in roles and pacing only; all have the same requests.

The services are the real ones. Engines and links take the time of an 8B model on A100s: its parameters weigh as much as
the KV of 120,000 tokens, and links of 100 Gbit/s are as slow beside them.
"""

import asyncio
from collections.abc import Sequence
from statistics import fmean

import msgspec

from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.load.simulate.client import replay
from livescale.load.simulate.cluster import VirtualCluster, virtual_cluster
from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.load.simulate.start import flat_topology, rare_collections, register, until, workers_in
from livescale.services.planner.settings import PlannerSettings
from livescale.services.router.forecast import TTFT_A_TOKEN
from livescale.services.router.settings import RouterSettings
from livescale.services.worker.settings import MIB, WorkerSettings
from livescale.shared.messages.model_spec import Disaggregation, ModelSpec
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.messages.scaling import SetRole
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import ROLE

INSTANCES = 8
MODEL = "m"
PATH = "/models/m"
VOCABULARY = 4_099
CONFIG = ModelConfig(
    family="llama",
    vocab_size=VOCABULARY,
    hidden_size=512,
    intermediate_size=1_536,
    num_hidden_layers=4,
    num_attention_heads=32,
    num_key_value_heads=1,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_position_embeddings=16_384,
)
NIC = 21e6  # bytes a second
KV_BYTES = 90 * MIB  # 360,000 tokens, as beside such a model on 80 GB
TTFT_SECONDS = 0.45
START_SECONDS = 600.0
SETTLE_SECONDS = 3.0
MOST_SECONDS = 36_000


class RolesSystem(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared. `prefill`: how many instances have that role, where roles are fixed; `tbt_slo` is what auto
    goes by."""

    name: str
    disaggregation: Disaggregation = "off"
    tbt_ratio: float = 1.85
    prefill: int | None = None
    tbt_slo: float = 0.022


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


def cluster_settings(system: RolesSystem, seed: int) -> VirtualClusterSettings:
    """Settings of a simulated cluster of eight machines with a GPU each, for this system."""
    return VirtualClusterSettings(
        topology=flat_topology(INSTANCES, NIC),
        models={PATH: CONFIG},
        seed=seed,
        planner=PlannerSettings(live="off", disaggregation=system.disaggregation, tbt_slo=system.tbt_slo),
        router=RouterSettings(disaggregation=system.disaggregation, ttft_slo=TTFT_SECONDS, tbt_slo=system.tbt_slo),
        worker=WorkerSettings(
            arena_bytes=48 * MIB,
            kv_bytes=KV_BYTES,
            max_num_seqs=256,
            max_num_batched_tokens=2048,
            tbt_ratio=system.tbt_ratio,
            enable_prefix_caching=False,
        ),
    )


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
