"""FP8 in blocks, as Qwen3 and DeepSeek have it (`weight_scale_inv`): transformers packs it, and the numbers are those
that transformers reads."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
from transformers.utils.quantization_config import FineGrainedFP8Config

from livescale.services.worker.engine.packed import PackedMatrix, unpacked
from livescale.services.worker.engine.parameters import block_tensors
from tests.checkpoints import tiny_checkpoint
from tests.quantized.test_engine import read


def packed_by_transformers(to: Path, config: FineGrainedFP8Config) -> dict[str, torch.Tensor]:
    """Write a checkpoint whose matrices of layers are packed. Returns them as transformers dequantizes them."""
    source, quantizer = tiny_checkpoint("qwen2"), SimpleNamespace(quantization_config=config)
    tensors = load_file(source / "model.safetensors")
    wide: dict[str, torch.Tensor] = {}
    for name, tensor in list(tensors.items()):
        if ".layers." in name and tensor.ndim == 2:
            made = Fp8Quantize(quantizer)._quantize_one(name, tensor)
            codes, scales = made[name], made[f"{name}_scale_inv"]
            wide[name] = Fp8Dequantize(quantizer)._dequantize_one(codes, scales, torch.bfloat16)
            tensors |= {name: codes, f"{name}_scale_inv": scales}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, to / "model.safetensors")
    said = json.loads((source / "config.json").read_bytes()) | {"quantization_config": config.to_dict()}
    (to / "config.json").write_text(json.dumps(said, default=str))
    return wide


@pytest.mark.parametrize("rows", [16, 32])
def test_every_number_is_the_one_that_transformers_reads(tmp_path: Path, rows: int) -> None:
    wide = packed_by_transformers(tmp_path, FineGrainedFP8Config(weight_block_size=(rows, 32)))
    model = read(tmp_path, layout="plain")
    found: dict[str, torch.Tensor] = {}
    for block, data in zip(model.manifest.blocks, model.blocks, strict=True):
        tensors = block_tensors(block, memoryview(data), "bfloat16")
        found |= {name: unpacked(one) for name, one in tensors.items() if isinstance(one, PackedMatrix)}
    assert found.keys() == wide.keys()
    for name, matrix in wide.items():
        assert torch.equal(found[name], matrix), name
