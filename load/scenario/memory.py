"""How the memory of a scenario's GPUs is divided between parameters and KV."""

from collections.abc import Iterator, Mapping

from livescale.services.supervisor.checks import ranks_of
from livescale.services.supervisor.resources import round_up
from livescale.services.supervisor.settings import StackSettings
from livescale.services.worker.settings import MIB
from livescale.shared.memory.arena import placed_bytes
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.block_layout import shard_layouts
from livescale.shared.model.sharding import check_shards
from livescale.shared.topology.topology import Topology

USED_SHARE = 0.9  # of a GPU's memory, for parameters and KV


def worker_memory(stack: StackSettings, topology: Topology, configs: Mapping[str, ModelConfig]) -> dict[str, int]:
    """Parameters get what the largest model takes, KV what is left of the smallest GPU's memory. `configs` are the
    models' by path. Raises ValueError for models that do not fit, which names the key."""
    arena = stack.arena_bytes or max(_rank_bytes(stack, configs))
    room = int(USED_SHARE * min(gpu.memory_bytes for gpu in topology.gpus))
    if stack.kv_bytes is None and arena + MIB > room:
        raise ValueError(
            f"models: a worker of the largest takes {arena / 1e9:.1f} GB, and {room / 1e9:.1f} GB of a GPU's "
            "memory are for it: raise tensor-parallel-size, or give a topology with more memory"
        )
    return {"arena_bytes": round_up(arena), "kv_bytes": stack.kv_bytes or room - arena}


def _rank_bytes(stack: StackSettings, configs: Mapping[str, ModelConfig]) -> Iterator[int]:
    """The bytes of parameters of a worker, for each model."""
    for number, model in enumerate(stack.models):
        config, ranks = configs[model.path], ranks_of(model, stack)
        try:
            check_shards(config, ranks)
        except ValueError as error:
            raise ValueError(f"models[{number}]: {error}") from None
        dtype = model.dtype if model.dtype not in (None, "auto") else stack.dtype
        assert dtype != "auto"
        yield placed_bytes([each.size_bytes for each in shard_layouts(config, dtype, 0, ranks, "plain")])
