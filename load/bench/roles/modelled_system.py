"""The systems that are compared under virtual time: eight instances each, which differ in roles and pacing only.

Engines and links take the time of an 8B model on A100s: its parameters weigh as much as the KV of 120,000 tokens, and
links of 100 Gbit/s are as slow beside them.
"""

import msgspec

from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.load.simulate.start import flat_topology
from livescale.services.planner.settings import PlannerSettings
from livescale.services.router.settings import RouterSettings
from livescale.services.worker.settings import MIB, WorkerSettings
from livescale.shared.messages.model_spec import Disaggregation
from livescale.shared.messages.parameters import ModelConfig

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


class RolesSystem(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared. `prefill`: how many instances have that role, where roles are fixed; `tbt_slo` is what auto
    goes by."""

    name: str
    disaggregation: Disaggregation = "off"
    tbt_ratio: float = 1.85
    prefill: int | None = None
    tbt_slo: float = 0.022


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
