"""Each rank keeps of an adapter what the cut of the model leaves it."""

import pytest

from livescale.shared.messages.parameters import Manifest
from livescale.shared.model.adapter_shards import adapter_bytes, adapter_slices
from tests.worker.engine.adapted import adapter

RANK, NAME = 8, "qwen2-cut-tied"  # 12 query heads of 6 numbers that share 2 of keys, 100 features


@pytest.fixture
def manifest() -> Manifest:
    return adapter(NAME, 1, "float32", RANK)[0]


def test_matrices_cut_by_rows_have_part_of_b_and_those_cut_by_columns_part_of_a(manifest: Manifest) -> None:
    slices = adapter_slices(manifest, 1, 4)
    kept = {
        name.removeprefix("model.layers.0."): own
        for name, own in slices.items()
        if name.startswith("model.layers.0.") and own is not None
    }
    assert kept == {
        "self_attn.q_proj.lora_B.weight": (0, 18, 36),
        "self_attn.k_proj.lora_B.weight": (0, 0, 6),  # ranks 0 and 1 share a head
        "self_attn.v_proj.lora_B.weight": (0, 0, 6),
        "self_attn.o_proj.lora_A.weight": (1, 18, 36),
        "mlp.gate_proj.lora_B.weight": (0, 25, 50),
        "mlp.up_proj.lora_B.weight": (0, 25, 50),
        "mlp.down_proj.lora_A.weight": (1, 25, 50),
    }


def test_a_rank_keeps_the_bytes_of_its_part(manifest: Manifest) -> None:
    layers, hidden = manifest.config.num_hidden_layers, manifest.config.hidden_size
    down = 5 * hidden + 18 + 25
    up = 18 + 6 + 6 + 25 + 25 + 2 * hidden
    assert adapter_bytes(manifest, 4) == 4 * RANK * layers * (down + up)
    assert adapter_bytes(manifest, 1) == manifest.size_bytes
    assert adapter_slices(manifest, 0, 1) == dict.fromkeys(adapter_slices(manifest, 0, 2))
