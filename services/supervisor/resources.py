"""What each worker gets: memory, as the models that are named need it, and a GPU of a topology to stand for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from livescale.services.supervisor.checks import BadSettings, count_workers, ranks_of
from livescale.services.supervisor.model_settings import ModelSettings
from livescale.services.supervisor.settings import MIB, StackSettings
from livescale.shared.memory.arena import placed_bytes
from livescale.shared.messages.parameters import DType, ModelConfig
from livescale.shared.model.block_layout import block_layouts, check_dtype, kv_item_bytes
from livescale.shared.model.checkpoint import CheckpointError, load_model_config, resolve_model_path
from livescale.shared.model.sharding import check_shards, shard_config
from livescale.shared.topology.file import find_topology

ROOM = 64 * MIB  # for models that come later and are a little larger than those that are named
SLOTS = 16  # requests at once, where nothing is said of it: the default of `livescale run worker`
LEAST_KV, MOST_KV = 16 * MIB, 512 * MIB
ANY_ARENA = 1024 * MIB  # where no model is named


@dataclass(frozen=True)
class ModelSize:
    """What one worker of an instance needs: bytes of parameters in its arena, and of KV cache for each token.

    `tokens` is the most that a request may have.
    """

    name: str
    arena_bytes: int
    token_bytes: int
    tokens: int


def measure_models(settings: StackSettings) -> list[ModelSize]:
    """The size of each model in the settings, which have no `auto` any more. For hub ids, configuration and tokenizer
    are fetched. Raises BadSettings for a model that cannot be read, computed, or cut for so many workers."""
    return [measure_model(model, settings) for model in settings.models]


def measure_model(model: ModelSettings, settings: StackSettings) -> ModelSize:
    ranks, dtype, layout = ranks_of(model, settings), model.dtype or settings.dtype, settings.layout
    assert dtype != "auto"
    assert layout != "auto"
    try:
        kept = model.kv_cache_dtype or settings.kv_cache_dtype
        config = load_model_config(find_files(model), kept)
        check_shards(config, ranks)
        check_dtype(config, dtype)
    except ValueError as error:
        raise BadSettings(f"model {model.name!r}: {error}") from None
    tokens = model.max_model_len or settings.max_model_len or config.max_position_embeddings
    if tokens > config.max_position_embeddings:
        raise BadSettings(
            f"model {model.name!r}: max-model-len {tokens} is more than the checkpoint's own "
            f"{config.max_position_embeddings}"
        )
    sizes = [block.size_bytes for block in block_layouts(config, dtype, ranks, layout)]
    each = len(sizes) // ranks
    arena = max(placed_bytes(sizes[rank * each : (rank + 1) * each]) for rank in range(ranks))
    return ModelSize(model.name, arena, token_bytes(config, ranks, dtype), tokens)


def resolve_memory(settings: StackSettings, sizes: Sequence[ModelSize]) -> StackSettings:
    """The settings with sizes of arena and KV cache that fit the models that are named, where they are left out.

    Raises BadSettings for a model that is too large for the sizes that are given.
    """
    largest = max(sizes, key=lambda one: one.arena_bytes, default=None)
    if largest is None:
        return replace(settings, arena_bytes=settings.arena_bytes or ANY_ARENA, kv_bytes=settings.kv_bytes or MOST_KV)
    if settings.arena_bytes is not None and settings.arena_bytes < largest.arena_bytes:
        raise BadSettings(
            f"model {largest.name!r} takes {largest.arena_bytes} bytes of each worker, and arena-bytes is "
            f"{settings.arena_bytes}: set --arena-bytes {largest.arena_bytes} or more, or leave it out"
        )
    slots = int(settings.worker_options.get("max_num_seqs", SLOTS))
    kv = max(2 * slots * one.tokens * one.token_bytes for one in sizes)
    return replace(
        settings,
        arena_bytes=settings.arena_bytes or round_up(2 * largest.arena_bytes + ROOM),
        kv_bytes=settings.kv_bytes or round_up(min(max(kv, LEAST_KV), MOST_KV)),
    )


def round_up(size_bytes: int) -> int:
    return -(-size_bytes // MIB) * MIB


def token_bytes(config: ModelConfig, ranks: int, dtype: DType) -> int:
    """The bytes that a rank keeps of each token."""
    part = shard_config(config, 0, ranks)
    numbers = part.kv_parts * part.num_hidden_layers * part.num_key_value_heads * part.head_dim
    return numbers * kv_item_bytes(config, dtype)


def find_files(model: ModelSettings) -> Path:
    """The directory of the model's configuration and tokenizer, fetched for a hub id. Raises CheckpointError."""
    try:
        return resolve_model_path(model.path, parameters=False)
    except OSError as error:
        raise CheckpointError(f"{model.path}: {error.strerror}") from None


@dataclass(frozen=True)
class Placement:
    """Which GPUs of a topology the workers stand for: `worker-i` is at the i-th of `gpus`.

    Each host of these GPUs has a host cache. `shaping_file` is set where links are shaped.
    """

    topology: str
    gpus: tuple[str, ...]
    shaping_file: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(host_of(gpu) for gpu in self.gpus))

    def flags(self, place: str) -> Mapping[str, str]:
        """What a worker or host is told of its place. In `livescale status` each host is a machine of its own."""
        shaping = {"topology": self.topology, "shaping_file": self.shaping_file} if self.shaping_file else {}
        return {"place": place, "host_name": host_of(place), **shaping}


def place_workers(settings: StackSettings) -> Placement | None:
    """Take the first GPUs of the topology, one for each worker; None without a topology.

    Raises BadSettings for a topology that cannot be read or has too few GPUs.
    """
    if not settings.topology:
        if settings.shaped:
            raise BadSettings("shaped: links are limited to the rates of a topology; give --topology")
        return None
    if settings.shaped and settings.link_rate:
        raise BadSettings("shaped and link-rate: both limit links; leave out --link-rate")
    try:
        gpus = [gpu.id for gpu in find_topology(settings.topology).gpus]
    except ValueError as error:
        raise BadSettings(f"topology: {error}") from None
    if settings.workers > len(gpus) or not gpus:
        raise BadSettings(
            f"topology {settings.topology} has {len(gpus)} GPUs for {count_workers(settings)} workers; "
            "lower --workers or add GPUs"
        )
    return Placement(absolute(settings.topology), tuple(gpus[: count_workers(settings)]))


def absolute(topology: str) -> str:
    """The file's absolute path, as processes may have another working directory; a shipped topology's name stays."""
    path = Path(topology)
    return str(path.resolve()) if path.is_file() else topology


def host_of(place: str) -> str:
    return place.partition("/")[0]
