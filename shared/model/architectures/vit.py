"""ViT: an image is cut into patches, whose rows see each other; the first row says what the image shows."""

from collections.abc import Mapping

from msgspec.structs import replace

from livescale.shared.messages.images import CHANNELS, MOST_IMAGE_BYTES, MOST_IMAGE_ROWS, Images
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.declaration.architecture import Architecture
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.encoder import describe_rows
from livescale.shared.model.declaration.tensors import EMBEDDING, PATCHES, POSITIONS, Source

NAMES = {
    "self_attn.q_proj": "attention.attention.query",
    "self_attn.k_proj": "attention.attention.key",
    "self_attn.v_proj": "attention.attention.value",
    "self_attn.o_proj": "attention.output.dense",
    "input_layernorm": "layernorm_before",
    "post_attention_layernorm": "layernorm_after",
    "mlp.up_proj": "intermediate.dense",
    "mlp.down_proj": "output.dense",
    "model.norm": "vit.layernorm",
    PATCHES: "vit.embeddings.patch_embeddings.projection",
    "score": "classifier",
}


def _describe(config: ConfigFile) -> ModelConfig:
    images = _images(config)
    # The one token stands for the image as a whole.
    model = describe_rows(config, vocab_size=1, positions=images.rows)
    return replace(model, attention_bias=config.flag("qkv_bias", True), images=images)


def _images(config: ConfigFile) -> Images:
    size, patch = config.square("image_size", 224), config.square("patch_size", 16)
    if config.size("num_channels", CHANNELS) != CHANNELS:
        raise CheckpointError(f"num_channels must be {CHANNELS}, as images are in RGB; use a checkpoint for these")
    if not patch <= size:
        raise CheckpointError(f"patch_size is {patch}, must be at most image_size, {size}")
    size_bytes, rows = CHANNELS * size**2, 1 + (size // patch) ** 2
    if size_bytes > MOST_IMAGE_BYTES or rows > MOST_IMAGE_ROWS:
        raise CheckpointError(
            f"image_size is {size}: an image has {size_bytes} bytes and {rows} rows, and may have {MOST_IMAGE_BYTES} "
            f"and {MOST_IMAGE_ROWS}; use a checkpoint for smaller images or larger patches"
        )
    return Images(size=size, patch=patch)


def _reshaped(config: ModelConfig) -> Mapping[str, Source]:
    images, hidden = config.images, config.hidden_size
    assert images is not None
    patches = (hidden, CHANNELS, images.patch, images.patch)
    return {
        EMBEDDING: Source("vit.embeddings.cls_token", 0, 1, shape=(1, 1, hidden)),
        POSITIONS: Source("vit.embeddings.position_embeddings", 0, 1, shape=(1, images.rows, hidden)),
        f"{PATCHES}.weight": Source(f"{NAMES[PATCHES]}.weight", 0, hidden, shape=patches),
    }


ARCHITECTURE = Architecture(
    "ViTForImageClassification",
    "ViT, of images",
    _describe,
    renamed=NAMES,
    layers="vit.encoder.layer.",
    reshaped=_reshaped,
    unused=("vit.pooler.",),
    example={
        **{"image_size": 64, "patch_size": 8, "layer_norm_eps": 1e-12, "hidden_act": "gelu"},
        "id2label": {"0": "bird", "1": "cat", "2": "dog", "3": "fish", "4": "horse"},
    },
)
