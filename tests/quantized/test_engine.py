"""A quantized model has the logits of the same model dequantized to bfloat16, bit for bit, whoever computes it."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from safetensors.torch import load_file, save_file

from livescale.load.make_model import make_model
from livescale.load.sizes import Quantized
from livescale.services.worker.engine.parameters import block_tensors, unpacked
from livescale.services.worker.scheduling.batch import ScheduledChunk
from livescale.shared.messages.parameters import Layout
from tests.worker.engine.models import KERNELS, Checkpointed, Kind, kind, read_blocks
from tests.worker.requests import mixed_requests
from tests.worker.serving import serve, serve_each

TOKENS = tuple(range(3, 103))
WAYS = [
    pytest.param(Kind("bfloat16"), id="torch"),
    *(kind(variant, "bfloat16") for variant in ("amx", "avx512_bf16", "portable", "amx-emulated")),
]
HOW: tuple[Quantized, ...] = ("int4", "int8", "fp8")


def read(directory: Path, shards: int = 1, layout: Layout = "panels") -> Checkpointed:
    return read_blocks(directory, "bfloat16", shards, layout)


def all_tensors(model: Checkpointed) -> dict[str, torch.Tensor]:
    """The tensors of all blocks by name, packed or not."""
    return {
        name: tensor
        for block, data in zip(model.manifest.blocks, model.blocks, strict=True)
        for name, tensor in block_tensors(block, memoryview(data), "bfloat16").items()
    }


@cache
def made_of(how: Quantized) -> tuple[Checkpointed, Checkpointed, Checkpointed]:
    """A quantized model, and the same in bfloat16: in panels and row by row."""
    with TemporaryDirectory() as made:
        directory = make_model(Path(made) / "m", "qwen2", "tiny", 5, quantized=how)
        packed = read(directory)
        found = all_tensors(packed).items()
        matrices = {name: unpacked(one) for name, one in found if name.startswith("model.layers.")}
        path = directory / "model.safetensors"
        others = {name: tensor for name, tensor in load_file(path).items() if "_proj.weight" not in name}
        save_file({**others, **{name: one for name, one in matrices.items() if "_proj.weight" in name}}, path)
        config = json.loads((directory / "config.json").read_text())
        del config["quantization_config"]
        (directory / "config.json").write_text(json.dumps(config))
        return packed, read(directory), read(directory, layout="plain")


def logits(made: Checkpointed, way: Kind) -> torch.Tensor:
    """The logits of a prompt, and of one token after it."""
    engine, result = made.engine(kernels=way.kernels), []
    for chunk in (
        ScheduledChunk("a", TOKENS, 0, range(8), decode=False),
        ScheduledChunk("a", (7,), len(TOKENS), range(8), decode=True),
    ):
        rows = engine.rows([chunk])
        layers = made.manifest.config.num_hidden_layers
        result.append(engine.head(engine.layers(0, layers, engine.embed(rows), rows)))
    return torch.cat(result)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", HOW)
def test_logits_are_those_of_the_dequantized_model(how: Quantized, way: Kind) -> None:
    packed, panels, rows = made_of(how)
    assert packed.manifest.size_bytes < 0.8 * panels.manifest.size_bytes
    # Torch unpacks matrices row by row, and computes with panels in another order.
    assert torch.equal(logits(packed, way), logits(rows if way.kernels is None else panels, way))


@pytest.mark.parametrize("how", HOW)
def test_batch_composition_changes_no_bit(how: Quantized) -> None:
    engine, requests = made_of(how)[0].engine(kernels=KERNELS), mixed_requests((1, 3, 127, 129, 300))
    alone = serve_each(engine, requests)
    together = serve(engine, [(0, request) for request in requests], max_num_seqs=4, max_num_batched_tokens=200)
    for key, served in alone.items():
        assert together.tokens[key] == served.tokens[key]
        assert torch.equal(together.rows(key), served.rows(key)), key
