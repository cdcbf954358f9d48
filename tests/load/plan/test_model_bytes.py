import json
from pathlib import Path

import pytest

from livescale.load.plan.command import find_block_bytes


@pytest.mark.parametrize(
    ("model", "layers", "size_bytes"),
    [
        ("8b", 32, 16 * 10**9),
        ("70B", 80, 140 * 10**9),
        ("size=16GB,layers=32", 32, 16 * 10**9),
        ("size = 1 GiB, layers = 3", 3, 2**30),
    ],
)
def test_a_size_is_cut_into_equal_layers(model: str, layers: int, size_bytes: int) -> None:
    blocks = find_block_bytes(model)
    assert len(blocks) == layers
    assert sum(blocks) == size_bytes
    assert max(blocks) - min(blocks) <= 1


def test_a_checkpoint_has_the_blocks_that_its_configuration_says(tmp_path: Path) -> None:
    sizes = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", **sizes, **heads}
    (tmp_path / "config.json").write_text(json.dumps(config))
    layer = 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64)
    assert find_block_bytes(str(tmp_path)) == (2 * 100 * 64, layer, layer, layer, 2 * (64 + 100 * 64))


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("9b", "'9b' is no directory and no known size"),
        ("/nowhere", "give others as size=16GB,layers=32"),
        ("size=16,layers=4", "16 has no unit"),
        ("size=16GB,layers=0", "layers=0 is out of bounds"),
        ("size=3B,layers=4", "3 bytes are less than one for each of 4 layers"),
    ],
)
def test_what_is_no_model_is_refused(model: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        find_block_bytes(model)
