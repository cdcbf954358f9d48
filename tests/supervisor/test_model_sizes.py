"""What models need of a worker, and what workers get for it."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from livescale.services.supervisor.checks import BadSettings, resolve_form
from livescale.services.supervisor.model_sizes import (
    LEAST_KV,
    MOST_KV,
    ROOM,
    SLOTS,
    ModelSize,
    measure_models,
    resolve_memory,
)
from livescale.services.supervisor.settings import MIB, ModelSettings, StackSettings
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.memory.arena import Arena
from livescale.shared.model.block_layout import block_layouts
from livescale.shared.model.checkpoint import load_model_config
from tests.checkpoints import tiny_checkpoint

SMALL = ModelSize("small", arena_bytes=2 * MIB, token_bytes=512, tokens=4096)
LARGE = ModelSize("large", arena_bytes=900 * MIB, token_bytes=12_288, tokens=32_768)


def settings(path: Path, **more: object) -> StackSettings:
    models = (ModelSettings(name="m", path=str(path)),)
    return resolve_form(StackSettings(models=models, **more), "float32", "plain")  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_model_fits_an_arena_of_the_size_that_is_known_beforehand(ranks: int) -> None:
    told = settings(tiny_checkpoint("qwen2"), tensor_parallel_size=ranks)
    [size] = measure_models(told)
    config = load_model_config(tiny_checkpoint("qwen2"))
    blocks = block_layouts(config, "float32", ranks, "plain")
    Arena(size.arena_bytes).place([block.size_bytes for block in blocks[: len(blocks) // ranks]])
    assert size.arena_bytes < 1.1 * sum(block.size_bytes for block in blocks) / ranks + 100_000
    heads = max(1, config.num_key_value_heads // ranks)
    assert size.token_bytes == 2 * config.num_hidden_layers * heads * config.head_dim * 4
    assert size.tokens == config.max_position_embeddings


def test_small_models_get_small_workers() -> None:
    told = resolve_memory(StackSettings(), [SMALL])
    assert told.arena_bytes == 2 * 2 * MIB + ROOM
    assert told.kv_bytes == 2 * SLOTS * 4096 * 512
    assert resolve_memory(StackSettings(max_num_seqs=1), [SMALL]).kv_bytes == LEAST_KV


def test_the_largest_model_counts_and_caches_have_a_bound() -> None:
    told = resolve_memory(StackSettings(), [SMALL, LARGE])
    assert told.arena_bytes == 2 * 900 * MIB + ROOM
    assert told.kv_bytes == MOST_KV


def test_what_is_said_stays() -> None:
    told = resolve_memory(StackSettings(arena_bytes=7 * MIB, kv_bytes=3 * MIB), [SMALL])
    assert (told.arena_bytes, told.kv_bytes) == (7 * MIB, 3 * MIB)


def test_a_model_that_is_too_large_for_what_is_said_is_refused_with_the_number_to_set() -> None:
    with pytest.raises(BadSettings, match=f"model 'large' takes .* set --arena-bytes {900 * MIB} or more"):
        resolve_memory(StackSettings(arena_bytes=MIB), [SMALL, LARGE])


def test_requests_at_once_are_those_of_a_worker_of_which_nothing_is_said() -> None:
    assert WorkerSettings().max_num_seqs == SLOTS


def test_a_degree_that_does_not_divide_is_refused() -> None:
    with pytest.raises(BadSettings, match="tensor_parallel_size is 3"):
        measure_models(replace(settings(tiny_checkpoint("qwen2")), tensor_parallel_size=3))
