"""Experts in MXFP4, as openai has gpt-oss: the bits of what transformers makes of the same file in bfloat16."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.utils.logging import disable_progress_bar
from transformers.utils.quantization_config import Mxfp4Config

from livescale.load.make_model import make_model
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.parameters import block_tensors, unpacked
from livescale.shared.messages.parameters import Layout
from livescale.shared.model.checkpoint import CheckpointError
from tests.quantized.test_engine import WAYS, logits, read
from tests.worker.engine.models import KERNELS, Checkpointed, Kind
from tests.worker.engine.test_tensor_parallel import in_ranks
from tests.worker.requests import mixed_requests, random_prompt, submit
from tests.worker.serving import serve, serve_each

LAYER = "model.layers.1.mlp.experts."


@cache
def made() -> Path:
    """The directory of a small gpt-oss in MXFP4, and beside it what transformers makes of it in bfloat16."""
    kept.append(directory := TemporaryDirectory())
    whole = make_model(Path(directory.name) / "m", "gpt_oss", "tiny", 5, quantized="mxfp4")
    disable_progress_bar()
    wide = transformers.AutoModelForCausalLM.from_pretrained(
        whole, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.bfloat16
    )
    into = whole.parent / "wide"
    into.mkdir()
    # Its norms stay in float32 there.
    tensors = {name: tensor.bfloat16().contiguous() for name, tensor in wide.state_dict().items()}
    save_file(tensors, into / "model.safetensors")
    config = json.loads((whole / "config.json").read_text())
    del config["quantization_config"]
    (into / "config.json").write_text(json.dumps(config))
    return whole


kept: list[TemporaryDirectory[str]] = []


@cache
def both(layout: Layout = "panels") -> tuple[Checkpointed, Checkpointed]:
    """The model in MXFP4, and in bfloat16."""
    return read(made(), layout=layout), read(made().parent / "wide", layout=layout)


def test_every_number_is_the_one_that_transformers_reads() -> None:
    packed, rows = both("plain")
    for index in range(1, 4):
        ours, theirs = (
            block_tensors(one.manifest.blocks[index], memoryview(one.blocks[index]), "bfloat16")
            for one in (packed, rows)
        )
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert torch.equal(unpacked(tensor), theirs[name]), name


@pytest.mark.parametrize("way", WAYS)
def test_logits_are_those_of_the_dequantized_model(way: Kind) -> None:
    packed, wide = both("plain" if way.kernels is None else "panels")
    assert torch.equal(logits(packed, way), logits(wide, way))


def test_experts_stay_as_small_as_in_the_file() -> None:
    manifest = both()[0].manifest
    stored = {name: tensor.nbytes for name, tensor in load_file(made() / "model.safetensors").items()}
    assert manifest.size_bytes <= 1.03 * sum(stored.values())


@pytest.mark.parametrize("shards", [2])
def test_several_ranks_have_the_logits_of_the_dequantized_model(shards: int) -> None:
    prompt = submit("a", random_prompt(129, 129), max_tokens=4)
    served = [
        in_ranks(read(directory, shards, "plain"), shards, lambda engine: serve(engine, [(0, prompt)]))[0]
        for directory in (made(), made().parent / "wide")
    ]
    assert torch.equal(served[0].rows("a"), served[1].rows("a"))


def test_batch_composition_changes_no_bit() -> None:
    engine, requests = both()[0].engine(kernels=KERNELS), mixed_requests((1, 3, 127, 129, 300))
    alone = serve_each(engine, requests)
    together = serve(engine, [(0, request) for request in requests], max_num_seqs=4, max_num_batched_tokens=200)
    for key, served in alone.items():
        assert together.tokens[key] == served.tokens[key]
        assert torch.equal(together.rows(key), served.rows(key)), key


def spoiled(to: Path, **tensors: torch.Tensor) -> Path:
    """A copy in which some tensors of a layer are others."""
    path = to / "model.safetensors"
    save_file(load_file(made() / path.name) | {LAYER + name: one for name, one in tensors.items()}, path)
    for name in ("config.json",):
        (to / name).write_text((made() / name).read_text())
    return to


@pytest.mark.parametrize("scale", [0, 1, 254, 255])
def test_a_scale_that_makes_no_number_is_refused(tmp_path: Path, scale: int) -> None:
    scales = load_file(made() / "model.safetensors")[LAYER + "down_proj_scales"]
    scales[3, 2, 1] = scale
    directory = spoiled(tmp_path, down_proj_scales=scales)
    with pytest.raises(CheckpointError, match=r"experts.down_proj (holds NaN|has scales)"):
        read(directory)


def test_a_block_of_zeros_may_have_any_scale(tmp_path: Path) -> None:
    stored = load_file(made() / "model.safetensors")
    scales, blocks = (stored[f"{LAYER}down_proj_{part}"] for part in ("scales", "blocks"))
    scales[3, 2, 1], blocks[3, 2, 1] = 0, 0x88  # zeros with a sign
    one = read(spoiled(tmp_path, down_proj_scales=scales, down_proj_blocks=blocks))
    tensors = block_tensors(one.manifest.blocks[2], memoryview(one.blocks[2]), "bfloat16")
    assert not unpacked(tensors[LAYER + "down_proj.weight"])[3, 2, 32:64].any()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"quant_method": "fp8"}, "experts of GptOssForCausalLM are served in mxfp4 and bfloat16 only"),
        ({"modules_to_not_convert": ["model.layers.0.mlp.experts"]}, "modules_to_not_convert leaves out experts"),
    ],
)
def test_what_is_quantized_otherwise_is_refused_by_name(
    tmp_path: Path, changed: dict[str, object], problem: str
) -> None:
    directory = spoiled(tmp_path)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] |= changed
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint(directory, "bfloat16")


def test_groups_that_ranks_would_cut_are_refused(tmp_path: Path) -> None:
    config = json.loads((made() / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_local_experts": 7, "intermediate_size": 96}))
    with pytest.raises(CheckpointError, match=r"cuts groups of 32 inputs of mlp.experts.down_proj"):
        open_checkpoint(tmp_path, "bfloat16", 2)


@pytest.mark.parametrize(("family", "how"), [("llama", "mxfp4"), ("gpt_oss", "int4"), ("gpt2", "fp8")])
def test_models_are_not_made_in_a_form_that_is_not_served(tmp_path: Path, family: str, how: str) -> None:
    with pytest.raises(ValueError, match=f"{family} is not quantized to {how}"):
        make_model(tmp_path / "m", family, "tiny", 1, quantized=how)  # type: ignore[arg-type]
