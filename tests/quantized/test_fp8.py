"""FP8 in blocks, as Qwen3 and DeepSeek have it (`weight_scale_inv`): transformers packs it, and the numbers are those
that transformers reads."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils.quantization_config import FineGrainedFP8Config

from livescale.services.worker.engine.parameters import PackedMatrix, unpacked
from livescale.shared.messages.parameters import Family
from tests.checkpoints import tiny_checkpoint
from tests.quantized.test_engine import all_tensors, read


def packed_by_transformers(to: Path, family: Family, config: FineGrainedFP8Config) -> tuple[Path, Path]:
    """Write a checkpoint whose matrices of layers are packed, and what transformers dequantizes it to."""
    # Its import takes seconds, which every process would spend that collects tests.
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    source, quantizer = tiny_checkpoint(family), SimpleNamespace(quantization_config=config)
    tensors = load_file(source / "model.safetensors")
    wide = dict(tensors)
    for name, tensor in list(tensors.items()):
        if ".layers." in name and tensor.ndim == 2 and not name.endswith(".gate.weight"):
            made = Fp8Quantize(quantizer)._quantize_one(name, tensor)
            codes, scales = made[name], made[f"{name}_scale_inv"]
            wide[name] = Fp8Dequantize(quantizer)._dequantize_one(codes, scales, torch.bfloat16)
            tensors |= {name: codes, f"{name}_scale_inv": scales}
    said = json.loads((source / "config.json").read_bytes())
    for directory, stored, more in (
        (to / "packed", tensors, {"quantization_config": config.to_dict()}),
        (to / "wide", wide, {}),
    ):
        directory.mkdir()
        save_file({name: tensor.contiguous() for name, tensor in stored.items()}, directory / "model.safetensors")
        (directory / "config.json").write_text(json.dumps({**said, **more}, default=str))
    return to / "packed", to / "wide"


@pytest.mark.parametrize(
    ("family", "rows"),
    [("qwen2", 16), ("qwen2", 32), ("qwen2", 64), ("mixtral", 32), ("qwen3_moe", 16), ("deepseek_v3", 16)],
)
def test_every_number_is_the_one_that_transformers_reads(tmp_path: Path, family: Family, rows: int) -> None:
    config = FineGrainedFP8Config(weight_block_size=(rows, 32))
    packed, wide = (all_tensors(read(one, layout="plain")) for one in packed_by_transformers(tmp_path, family, config))
    assert packed.keys() == wide.keys()
    small = {name: one for name, one in packed.items() if isinstance(one, PackedMatrix)}
    assert {one.packing.scales for one in small.values()} == {"float32-panel" if rows == 64 else "float32"}
    assert small.keys() == {name for name in packed if "_proj" in name and name.endswith(".weight")}
    for name, tensor in packed.items():
        assert torch.equal(unpacked(tensor), wide[name]), name
