"""ViT, from its `config.json` as the hub has it."""

from typing import Any

import pytest

from livescale.shared.model.architectures.vit import ARCHITECTURE
from livescale.shared.model.block_layout import block_layouts
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.sharding import possible_shards
from livescale.shared.model.use import read_use

# Of google/vit-base-patch16-224.
BASE: dict[str, Any] = {
    "architectures": ["ViTForImageClassification"],
    "attention_probs_dropout_prob": 0.0,
    "encoder_stride": 16,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 768,
    "id2label": {str(index): f"label {index}" for index in range(1_000)},
    "image_size": 224,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "model_type": "vit",
    "num_attention_heads": 12,
    "num_channels": 3,
    "num_hidden_layers": 12,
    "patch_size": 16,
    "qkv_bias": True,
}


def test_the_base_model_has_a_row_for_each_patch_and_one_for_the_image() -> None:
    raw = ConfigFile(BASE)
    config = read_use(raw, ARCHITECTURE, None)
    raw.refuse_unread()
    assert config.images is not None
    assert (config.images.rows, config.images.size_bytes) == (197, 150_528)
    assert (config.max_position_embeddings, config.vocab_size) == (197, 1)
    assert (config.pooling, config.labels, config.pooler) == ("cls", 1_000, False)
    shapes = ARCHITECTURE.stored_shapes(config)
    assert shapes["vit.embeddings.cls_token"] == [1, 1, 768]
    assert shapes["vit.embeddings.position_embeddings"] == [1, 197, 768]
    assert shapes["vit.embeddings.patch_embeddings.projection.weight"] == [768, 3, 16, 16]
    assert shapes["vit.encoder.layer.11.attention.attention.query.bias"] == [768]
    assert len(shapes) == 4 + 12 * 16 + 4
    assert possible_shards(config) == [1, 2, 3, 4, 6, 12]


def test_sizes_may_be_pairs() -> None:
    pairs = read_use(ConfigFile({**BASE, "image_size": [224, 224], "patch_size": [16, 16]}), ARCHITECTURE, None)
    assert pairs == read_use(ConfigFile(BASE), ARCHITECTURE, None)


def test_every_rank_has_the_whole_first_block() -> None:
    config = read_use(ConfigFile(BASE), ARCHITECTURE, None)
    blocks = block_layouts(config, "bfloat16", 2)
    assert {block.size_bytes for block in blocks if block.name.startswith("embedding")} == {
        block_layouts(config, "bfloat16")[0].size_bytes
    }


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_channels": 1}, "num_channels must be 3"),
        ({"image_size": [224, 196]}, "image_size is .*, must be a positive whole number, or two that are the same"),
        ({"patch_size": 256}, "patch_size is 256, must be at most image_size, 224"),
        ({"image_size": 640}, "an image has 1228800 bytes and 1601 rows, and may have 1000000 and 2048"),
        ({"image_size": 384, "patch_size": 8}, "an image has 442368 bytes and 2305 rows"),
        ({"architectures": ["ViTModel"]}, "has none of ViTForImageClassification"),
        ({"num_attention_heads": 5}, "hidden_size 768 must be an even multiple of num_attention_heads, 5"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: not served of ViT"),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    raw = ConfigFile({**BASE, **fields})
    with pytest.raises(CheckpointError, match=said):
        ARCHITECTURE.quantized(read_use(raw, ARCHITECTURE, None), raw)
