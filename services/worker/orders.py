"""What a LOAD may ask for at all, whatever state the worker is in. Pure."""

from shared.block_layout import block_layouts
from shared.bus.contract import Refusal
from shared.messages.transfers import Load


def check_load(command: Load) -> None:
    """A manifest's blocks follow from its configuration, checksums aside. Raises Refusal 400 naming the field."""
    manifest = command.manifest
    wanted = manifest.config.num_hidden_layers + 2
    if len(manifest.blocks) != wanted:
        raise Refusal(400, f"manifest.blocks: {len(manifest.blocks)} of them, manifest.config makes {wanted}")
    for block, layout in zip(manifest.blocks, block_layouts(manifest.config, manifest.dtype), strict=True):
        if block != layout.block(block.checksum):
            raise Refusal(400, f"manifest.blocks: {block.name!r} is not block {layout.index} of manifest.config")
    longest = manifest.config.max_position_embeddings
    if command.max_model_len > longest:
        raise Refusal(400, f"max_model_len: {command.max_model_len} is more than the model's own {longest}")
