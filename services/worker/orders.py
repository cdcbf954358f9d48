"""What a LOAD may ask for at all, whatever state the worker is in. Pure."""

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.transfers import Load
from livescale.shared.model.block_layout import shard_layouts
from livescale.shared.model.sharding import check_shards


def check_load(command: Load) -> None:
    """A manifest's blocks follow from its configuration, checksums aside. Raises Refusal 400 naming the field."""
    manifest = command.manifest
    _check_ranks(command)
    wanted = manifest.config.num_hidden_layers + 2
    if len(manifest.blocks) != wanted:
        raise Refusal(400, f"manifest.blocks: {len(manifest.blocks)} of them, manifest.config makes {wanted}")
    layouts = shard_layouts(manifest.config, manifest.dtype, manifest.shard, manifest.shards, manifest.layout)
    for block, layout in zip(manifest.blocks, layouts, strict=True):
        if block != layout.block(block.checksum):
            raise Refusal(400, f"manifest.blocks: {block.name!r} is not block {layout.index} of manifest.config")
    longest = manifest.config.max_position_embeddings
    if command.max_model_len > longest:
        raise Refusal(400, f"max_model_len: {command.max_model_len} is more than the model's own {longest}")


def _check_ranks(command: Load) -> None:
    manifest, ranks = command.manifest, max(len(command.ranks), 1)
    try:
        check_shards(manifest.config, manifest.shards)
    except ValueError as error:
        raise Refusal(400, f"manifest.shards: {error}") from None
    if manifest.shards != ranks:
        raise Refusal(400, f"ranks: {ranks} of them, the manifest is for {manifest.shards}")
    if not command.rank == manifest.shard < ranks:
        raise Refusal(400, f"rank: {command.rank} of {ranks} cannot have shard {manifest.shard}")
