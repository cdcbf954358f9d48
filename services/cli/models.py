"""`livescale models` lists the architectures that are served, and `livescale check` says whether a checkpoint is."""

import importlib
import json
from typing import get_args

import click
import msgspec

from livescale.services.cli.tables import open_console, print_rows
from livescale.services.supervisor.resources import token_bytes
from livescale.shared.messages.parameters import DType, KvCacheDType, ModelConfig
from livescale.shared.messages.quantization import Packing
from livescale.shared.model.architectures import architecture_of, find_architecture, model_types
from livescale.shared.model.block_layout import block_layouts, check_dtype
from livescale.shared.model.checkpoint import load_model_config, resolve_model_path
from livescale.shared.model.sharding import possible_shards
from livescale.shared.units import format_size


class ArchitectureRow(msgspec.Struct, frozen=True):
    """One architecture: `model_type` and class as config.json names them, and what people run of it."""

    model_type: str
    architecture: str
    models: str


class Needs(msgspec.Struct, frozen=True):
    """What a checkpoint needs: bytes of each block, and of a token's KV; the numbers of ranks that it can have."""

    architecture: str
    dtype: str
    size_bytes: int
    block_bytes: dict[str, int]
    kv_bytes_per_token: int
    max_model_len: int
    tensor_parallel_sizes: list[int]
    quantized: list[str] = []


@click.command(name="models")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each.")
def models(as_json: bool) -> None:
    """List the architectures that are served, by the `model_type` of their checkpoints."""
    rows = []
    for name in model_types():
        architecture = find_architecture(name)
        assert architecture is not None
        rows.append(ArchitectureRow(name, architecture.class_name, architecture.serves))
    if as_json:
        for row in rows:
            click.echo(msgspec.json.encode(row))
    else:
        print_rows(open_console(), "Architectures", rows)


@click.command(name="check")
@click.argument("checkpoint", metavar="DIRECTORY|HUB_ID")
@click.option(
    "--dtype",
    type=click.Choice(get_args(DType)),
    default="bfloat16",
    show_default=True,
    help="Number type in which parameters are served.",
)
@click.option(
    "--kv-cache-dtype",
    type=click.Choice(get_args(KvCacheDType)),
    default="auto",
    show_default=True,
    help="How keys and values are kept.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def check(checkpoint: str, dtype: DType, kv_cache_dtype: KvCacheDType, as_json: bool) -> None:
    """Say whether a checkpoint will be served and what it needs, or what stands in the way.

    It reads the configuration and the headers of the parameters. Of a hub id all files are fetched.
    """
    # By name, as `livescale run` knows the services.
    files = importlib.import_module("livescale.services.host.find_parameters")
    try:
        directory = resolve_model_path(checkpoint)
        config = load_model_config(directory, kv_cache_dtype)
        check_dtype(config, dtype)
        files.find_parameters(directory, config)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    needs = needs_of(config, dtype)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(needs)))
        return
    for line in told(needs):
        click.echo(line)


def needs_of(config: ModelConfig, dtype: DType) -> Needs:
    """Return what this model needs when it is served in `dtype`: bytes by block, KV a token, ranks."""
    blocks = {block.name: block.size_bytes for block in block_layouts(config, dtype)}
    return Needs(
        architecture=architecture_of(config).class_name,
        dtype=dtype,
        size_bytes=sum(blocks.values()),
        block_bytes=blocks,
        kv_bytes_per_token=token_bytes(config, 1, dtype),
        max_model_len=config.max_position_embeddings,
        tensor_parallel_sizes=possible_shards(config),
        quantized=[] if config.quantization is None else list(map(told_packing, config.quantization.packings)),
    )


def told_packing(packing: Packing) -> str:
    """Say in words how the matrices of a checkpoint are quantized."""
    group = f"groups of {packing.group} inputs" if packing.group else "one scale an output"
    return f"{packing.codes} ({group}, scales in {packing.scales})"


def told(needs: Needs) -> list[str]:
    """The same for people. Layers of one size are told once."""
    layers = [size for name, size in needs.block_bytes.items() if name.startswith("layer-")]
    counts = {size: layers.count(size) for size in layers}
    sizes = ", ".join(f"{n} {'layer' if n == 1 else 'layers'} of {format_size(size)}" for size, n in counts.items())
    first, *_, last = needs.block_bytes.values()
    packed = f", matrices of layers in {' and '.join(needs.quantized)}" if needs.quantized else ""
    return [
        f"{needs.architecture} will be served, up to {needs.max_model_len} tokens a request.",
        f"parameters in {needs.dtype}{packed}: {format_size(needs.size_bytes)}: "
        f"embedding {format_size(first)}, {sizes}, head {format_size(last)}",
        f"KV cache: {needs.kv_bytes_per_token} bytes a token",
        f"tensor-parallel-size: {', '.join(map(str, needs.tensor_parallel_sizes))}",
    ]
