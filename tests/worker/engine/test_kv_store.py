"""The KV cache's bytes: shaped to the model, exported and imported by blocks and layers."""

import pytest
import torch

from livescale.services.worker.engine.kv_store import KvStore, allocate_host_kv_memory, allocate_kv_memory
from livescale.services.worker.scheduling.batch import KvSlice
from livescale.shared.messages.parameters import DType, ModelConfig

CONFIG = ModelConfig(
    family="qwen2",
    vocab_size=771,
    hidden_size=70,
    intermediate_size=131,
    num_hidden_layers=3,
    num_attention_heads=7,
    num_key_value_heads=1,
    head_dim=10,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    max_position_embeddings=2_200,
)
BLOCK_ITEMS = CONFIG.num_hidden_layers * 2 * CONFIG.num_key_value_heads * 16 * CONFIG.head_dim


def _store(blocks: int = 6, dtype: DType = "float32") -> KvStore:
    size = 4 if dtype == "float32" else 2
    store = KvStore(allocate_kv_memory(blocks * BLOCK_ITEMS * size + 3), CONFIG, dtype, 16)
    store.cache.copy_(torch.randn(store.cache.shape))
    return store


def test_a_device_that_has_no_such_memory_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*shape: int, **options: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(MemoryError, match="cuda:0 has no 1024 bytes for the KV cache"):
        allocate_kv_memory(1024, "cuda:0")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_exported_can_be_imported_elsewhere(dtype: DType) -> None:
    one, other = _store(dtype=dtype), _store(dtype=dtype)
    untouched = other.cache.clone()
    other.import_kv(range(3, 5), range(1, 3), one.export_kv(range(0, 2), range(1, 3)))
    assert torch.equal(other.cache[1:3, :, :, 48:80], one.cache[1:3, :, :, 0:32])
    assert torch.equal(other.cache[0], untouched[0])
    assert torch.equal(other.cache[:, :, :, :48], untouched[:, :, :, :48])
    assert torch.equal(other.cache[:, :, :, 80:], untouched[:, :, :, 80:])


def test_parts_imported_one_by_one_make_the_whole() -> None:
    one, other = _store(), _store()
    for layer in range(3):
        for block in range(6):
            blocks, layers = range(block, block + 1), range(layer, layer + 1)
            other.import_kv(blocks, layers, one.export_kv(blocks, layers))
    assert torch.equal(other.cache, one.cache)


def test_an_export_is_a_copy() -> None:
    store = _store()
    exported = store.export_kv(range(0, 6), range(0, 3))
    before = bytes(exported)
    store.cache.zero_()
    assert bytes(exported) == before


@pytest.mark.parametrize(
    ("blocks", "layers"), [(range(5, 7), range(1)), (range(0), range(1)), (range(1), range(3, 4)), (range(1), range(0))]
)
def test_blocks_and_layers_outside_the_cache_are_refused(blocks: range, layers: range) -> None:
    with pytest.raises(ValueError, match="the cache has no blocks"):
        _store().export_kv(blocks, layers)


def test_an_import_of_the_wrong_size_is_refused() -> None:
    store = _store()
    exported = store.export_kv(range(0, 2), range(0, 1))
    with pytest.raises(ValueError, match="3 blocks of 1 layers"):
        store.import_kv(range(0, 3), range(0, 1), exported)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_slices_go_to_just_their_positions_and_layers(dtype: DType) -> None:
    one, other = _store(dtype=dtype), _store(dtype=dtype)
    expected = other.cache.clone()
    expected[1:3, :, :, 48 + 5 : 48 + 30] = one.cache[1:3, :, :, 5:30]
    expected[:1, :, :, 80 + 1 : 80 + 2] = one.cache[:1, :, :, 32 + 1 : 32 + 2]
    taken = one.export_slices([KvSlice(range(2), 5, 30, range(1, 3)), KvSlice(range(2, 3), 1, 2, range(1))])
    data = memoryview(bytearray(taken))
    other.import_slices([KvSlice(range(3, 5), 5, 30, range(1, 3)), KvSlice(range(5, 6), 1, 2, range(1))], data)
    assert torch.equal(other.cache, expected)


def test_slices_that_are_not_there_are_refused() -> None:
    store = _store()
    with pytest.raises(ValueError, match=r"have no positions 0 \.\. 32"):
        store.export_slices([KvSlice(range(2), 0, 33, range(1))])
    with pytest.raises(ValueError, match=r"1 slices are .* bytes of KV, not 8"):
        store.import_slices([KvSlice(range(2), 0, 3, range(1))], memoryview(bytearray(8)))


def test_blocks_that_are_not_aligned_are_refused() -> None:
    with pytest.raises(ValueError, match="--block-size is 8"):
        KvStore(allocate_kv_memory(1 << 20), CONFIG, "float32", 8)


def test_memory_is_used_as_far_as_whole_blocks_go() -> None:
    assert _store(blocks=6).blocks == 6
    assert _store(blocks=6, dtype="bfloat16").tokens == 96


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_are_copied_within_the_cache_to_host_memory_and_back(dtype: DType) -> None:
    size = 4 if dtype == "float32" else 2
    memory, host = (
        allocate(blocks * BLOCK_ITEMS * size)
        for allocate, blocks in ((allocate_kv_memory, 8), (allocate_host_kv_memory, 4))
    )
    store = KvStore(memory, CONFIG, dtype, 16, host)
    assert (store.blocks, store.host_blocks) == (8, 4)
    assert store.fetch_rate() is not None
    store.cache.copy_(torch.randn(store.cache.shape))
    before = [bytes(store.export_kv(range(block, block + 1), range(len(store.cache)))) for block in range(8)]
    store.copy_kv(range(1, 4), range(-4, -1))
    store.copy_kv(range(5, 6), range(1, 2))
    store.copy_kv(range(-3, -1), range(6, 8))
    after = [bytes(store.export_kv(range(block, block + 1), range(len(store.cache)))) for block in range(8)]
    assert after == [before[block] for block in (0, 5, 2, 3, 4, 5, 2, 3)]
    for blocks in (range(-5, -4), range(-1, 1), range(8, 9)):
        with pytest.raises(ValueError, match="has no blocks"):
            store.copy_kv(range(1), blocks)


def test_without_host_memory_nothing_is_fetched() -> None:
    assert KvStore(allocate_kv_memory(1 << 20), CONFIG, "float32", 16).fetch_rate() is None
