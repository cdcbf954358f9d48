"""Two instances that prefill, two that decode, and a worker to which parameters are sent while they serve.

Engines and links take the time of Llama 2 7B on A100s with links of 100 Gbit/s. Its KV is heavy: a prompt of 2,000
tokens has a gigabyte. No host has a copy of the model, as other models fill their memory, so an instance has to send.
"""

from msgspec.structs import replace

from livescale.load.simulate.cluster import VirtualCluster
from livescale.load.simulate.cluster_settings import ProcessPlace, VirtualClusterSettings
from livescale.load.simulate.start import flat_topology
from livescale.services.host.settings import HostSettings
from livescale.services.planner.actor import Planner
from livescale.services.planner.fleet import ModelFleet, ModelView
from livescale.services.planner.role_switch import RoleSwitch
from livescale.services.planner.scale_in import ScaleIn
from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.scale_planner import ScalePlanner
from livescale.services.planner.settings import PlannerSettings
from livescale.services.planner.store import ScaleStore
from livescale.services.router.settings import RouterSettings
from livescale.services.supervisor.resources import token_bytes
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.messages.scaling import Scale
from livescale.shared.model.block_layout import block_layouts
from livescale.shared.process.run import Build, World
from livescale.shared.transfer.chunks import first_ticket

SERVING, WORKERS = 4, 5  # half of those that serve prefill
MODEL = "m"
VOCABULARY = 4_099
CONFIG = ModelConfig(
    family="llama",
    vocab_size=VOCABULARY,
    hidden_size=512,
    intermediate_size=1_024,
    num_hidden_layers=32,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_position_embeddings=16_384,
)
MODEL_BYTES = sum(layout.size_bytes for layout in block_layouts(CONFIG, "bfloat16"))
KV_TOKEN_BYTES = token_bytes(CONFIG, 1, "bfloat16")
NIC = 12.5e9 * KV_TOKEN_BYTES / (512 << 10)  # bytes a second: KV of the real model has 512 KiB a token
FILLERS = {f"f{number}": f"/models/f{number}" for number in range(WORKERS)}  # one for each host
PATH = f"/models/{MODEL}"


class PrefillSources(ScalePlanner):
    """Knows of no copies but those of instances that prefill, as where sources are chosen without a look at roles."""

    def scale(self, asked: Scale, view: ModelView, fleet: ModelFleet, at: float) -> ScaleIn | ScaleOut | RoleSwitch:
        workers = [replace(one, holding=None) if one.role == "decode" else one for one in view.snapshot.workers]
        seen = view._replace(snapshot=replace(view.snapshot, workers=workers))
        return super().scale(asked, seen, fleet, at)


class PrefillSourcesCluster(VirtualCluster):
    """A cluster whose planner takes parameters from instances that prefill."""

    def build(self, at: ProcessPlace) -> Build:
        return self._planner if at.service == "planner" else super().build(at)

    def _planner(self, world: World) -> Planner:
        store, topology = ScaleStore(first_ticket(world.clock.wall())), self.settings.topology
        settings = self.settings.planner.in_topology(topology)
        return Planner(world, PrefillSources(world.ids, settings, store, topology), store)


def sources_settings(seed: int) -> VirtualClusterSettings:
    """Settings of a simulated cluster of five machines with a GPU each."""
    return VirtualClusterSettings(
        topology=flat_topology(WORKERS, NIC),
        models=dict.fromkeys((PATH, *FILLERS.values()), CONFIG),
        seed=seed,
        planner=PlannerSettings(live="off", disaggregation="on", prefill_share=0.5),
        router=RouterSettings(disaggregation="on"),
        host=HostSettings(cache_bytes=MODEL_BYTES * 5 // 4),
        worker=WorkerSettings(
            arena_bytes=2 * MODEL_BYTES,
            kv_bytes=400_000 * KV_TOKEN_BYTES,
            max_num_seqs=256,
            max_num_batched_tokens=2048,
            engine_profile="llama2-7b-a100",
            enable_prefix_caching=False,
            keep_parameters=False,
        ),
    )
