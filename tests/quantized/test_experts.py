"""Experts whose matrices are quantized, as people have Qwen3-MoE, Mixtral and DeepSeek: the bits of the same checkpoint
dequantized to bfloat16, whoever packed it and however it is cut."""

import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from safetensors.torch import load_file, save_file

from livescale.load.make_model import make_model
from livescale.load.quantize import BLOCK
from livescale.load.sizes import Quantized
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.parameters import PackedMatrix, unpacked
from livescale.shared.messages.parameters import Layout
from livescale.shared.model.checkpoint import CheckpointError, load_model_config
from livescale.shared.model.sharding import possible_shards
from tests.quantized.expert_fixtures import OUTPUTS, ROUTER_ROWS, turn, with_experts
from tests.quantized.test_checkpoints import LAYER, NAMES, matrices
from tests.quantized.test_engine import WAYS, all_tensors, logits, read
from tests.worker.engine.models import KERNELS, Checkpointed, Kind
from tests.worker.engine.test_tensor_parallel import in_ranks
from tests.worker.requests import mixed_requests, random_prompt, submit
from tests.worker.serving import serve, serve_each

HERE = Path(__file__).parent
MADE: list[tuple[str, Quantized]] = [
    ("qwen3_moe", "fp8"),
    ("deepseek_v3", "fp8"),
    ("qwen2_moe", "fp8"),
    ("deepseek_v2", "int8"),
    ("mixtral", "int4"),
    ("olmoe", "int8"),
]
kept: list[TemporaryDirectory[str]] = []


def dequantized(stored: dict[str, torch.Tensor], how: Quantized) -> dict[str, torch.Tensor]:
    """The tensors of a made checkpoint in bfloat16. Blocks of FP8 may be cut at the edges, unlike transformers'."""
    wide = dict(stored)
    for name, codes in stored.items():
        module = name.removesuffix(".weight").removesuffix(".weight_packed")
        if how == "fp8" and f"{name}_scale_inv" in stored:
            scales = wide.pop(f"{name}_scale_inv").repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
            wide[name] = (codes.float() * scales[: codes.shape[0], : codes.shape[1]]).bfloat16()
        elif how == "int8" and f"{name}_scale" in stored:
            wide[name] = (codes.float() * wide.pop(f"{name}_scale").float()).bfloat16()
        elif name.endswith(".weight_packed"):
            numbers = torch.stack([(codes >> (4 * place)) & 15 for place in range(8)], 2).flatten(1) - 8
            scales = wide.pop(f"{module}.weight_scale").float()
            each = scales.repeat_interleave(numbers.shape[1] // scales.shape[1], 1)
            wide[f"{module}.weight"] = (numbers * each).bfloat16()
            del wide[name], wide[f"{module}.weight_shape"]
    return wide


@cache
def directories(family: str, how: Quantized) -> tuple[Path, Path]:
    """A quantized checkpoint, and what it is in bfloat16."""
    kept.append(directory := TemporaryDirectory())
    packed = make_model(Path(directory.name) / "packed", family, "tiny", 5, quantized=how)
    wide = Path(shutil.copytree(packed, packed.parent / "wide"))
    save_file(dequantized(load_file(packed / "model.safetensors"), how), wide / "model.safetensors")
    config = json.loads((wide / "config.json").read_text())
    del config["quantization_config"]
    (wide / "config.json").write_text(json.dumps(config))
    return packed, wide


@cache
def both(family: str, how: Quantized, layout: Layout = "panels") -> tuple[Checkpointed, Checkpointed]:
    """The model as it is quantized, and in bfloat16."""
    packed, wide = directories(family, how)
    return read(packed, layout=layout), read(wide, layout=layout)


@pytest.mark.parametrize(("family", "how"), MADE)
def test_every_number_is_that_of_the_dequantized_checkpoint(family: str, how: Quantized) -> None:
    packed, wide = (all_tensors(one) for one in both(family, how, "plain"))
    assert packed.keys() == wide.keys()
    assert {name for name, one in packed.items() if isinstance(one, PackedMatrix)} == {
        name
        for name in packed
        if (name.startswith("model.layers.") and name.endswith("_proj.weight")) or "_mqa" in name
    }
    for name, tensor in packed.items():
        assert torch.equal(unpacked(tensor), wide[name]), name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("family", "how"), MADE)
def test_logits_are_those_of_the_dequantized_model(family: str, how: Quantized, way: Kind) -> None:
    packed, wide = both(family, how, "plain" if way.kernels is None else "panels")
    assert torch.equal(logits(packed, way), logits(wide, way))


@pytest.mark.parametrize(("family", "how"), MADE)
def test_batch_composition_changes_no_bit(family: str, how: Quantized) -> None:
    engine, requests = both(family, how)[0].engine(kernels=KERNELS), mixed_requests((1, 3, 127, 129))
    alone = serve_each(engine, requests)
    together = serve(engine, [(0, request) for request in requests], max_num_seqs=4, max_num_batched_tokens=200)
    for key, served in alone.items():
        assert together.tokens[key] == served.tokens[key]
        assert torch.equal(together.rows(key), served.rows(key)), key


@pytest.mark.parametrize(("family", "how"), MADE)
def test_several_ranks_have_the_logits_of_the_dequantized_model(family: str, how: Quantized) -> None:
    packed, wide = directories(family, how)
    if 2 not in possible_shards(load_model_config(packed)):
        with pytest.raises(CheckpointError, match="cuts groups of"):
            open_checkpoint(packed, "bfloat16", 2)
        return
    prompt = submit("a", random_prompt(129, 129), max_tokens=4)
    served = [
        in_ranks(read(one, 2, "plain"), 2, lambda engine: serve(engine, [(0, prompt)]))[0] for one in (packed, wide)
    ]
    assert torch.equal(served[0].rows("a"), served[1].rows("a"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("experts", [7, 8])
def test_experts_are_what_others_packed_whole_or_cut_over_ranks(name: str, experts: int, tmp_path: Path) -> None:
    [dense] = matrices(HERE / name)
    directory = with_experts(name, tmp_path / "m", experts)
    [whole], ranks = matrices(directory), matrices(directory, shards=2)
    for part in OUTPUTS:
        right = [torch.roll(dense[f"{LAYER}.mlp.{part}"], turn(part, expert), 0) for expert in range(experts)]
        key, inside = f"{LAYER}.mlp.experts.{part}", experts % 2
        assert torch.equal(whole[key], torch.stack(right)), part
        axis = (2 if part == "down_proj" else 1) if inside else 0
        assert torch.equal(torch.cat([rank[key] for rank in ranks], axis), whole[key]), part


@pytest.mark.parametrize("name", NAMES)
def test_a_router_that_is_quantized_is_dequantized_when_it_is_read(name: str, tmp_path: Path) -> None:
    [dense] = matrices(HERE / name)
    model = read(with_experts(name, tmp_path / "m", ROUTER_ROWS, quantized_router=True), layout="plain")
    router = all_tensors(model)[f"{LAYER}.mlp.gate.weight"]
    assert torch.equal(router, dense[f"{LAYER}.self_attn.k_proj"][:ROUTER_ROWS])


def test_experts_that_are_not_packed_like_the_first_are_refused_by_name(tmp_path: Path) -> None:
    directory = with_experts("awq", tmp_path / "m", 4)
    tensors = load_file(directory / "model.safetensors")
    del tensors[f"{LAYER}.mlp.experts.2.up_proj.qweight"]
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"tensors missing .*experts.2.up_proj.qweight"):
        open_checkpoint(directory, "bfloat16")
