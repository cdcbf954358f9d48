"""Checkpoints with experts whose matrices other people's code packed: those of the folders here, rearranged.

Each expert has the same matrices with their outputs turned by some words, which every form allows. So no two experts
are alike, and what they are follows from the dense model.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
STEP, ROUTER_ROWS = 16, 8
OUTPUTS = {"gate_proj": 64, "up_proj": 64, "down_proj": 32}
LAST = ("qweight", "qzeros", "scales")  # whose outputs are their last dimension


def turn(part: str, expert: int) -> int:
    """By how many outputs a matrix of this expert is turned: the three of them unlike those of any other expert."""
    return STEP * (expert >> {"gate_proj": 0, "up_proj": 1, "down_proj": 2}[part]) % OUTPUTS[part]


def with_experts(name: str, directory: Path, experts: int, quantized_router: bool = False, **more: Any) -> Path:
    """Write a Qwen3-MoE of one layer made of the fixture `name`."""
    directory.mkdir()
    stored = load_file(HERE / name / "model.safetensors")
    config = json.loads((HERE / name / "config.json").read_text())
    layer = "model.layers.0."
    made = {key: one for key, one in stored.items() if ".mlp." not in key}
    for key, one in stored.items():
        part, _, kind = key.removeprefix(f"{layer}mlp.").partition(".")
        if part not in OUTPUTS:
            continue
        for expert in range(experts):
            turned = rolled(one, kind, OUTPUTS[part], turn(part, expert))
            made[f"{layer}mlp.experts.{expert}.{part}.{kind}"] = turned
    if quantized_router:  # the first rows of another matrix
        for key, one in stored.items():
            if key.startswith(f"{layer}self_attn.k_proj."):
                kind = key.rpartition(".")[2]
                made[f"{layer}mlp.gate.{kind}"] = first_rows(one, kind, 32, ROUTER_ROWS)
    else:
        made[f"{layer}mlp.gate.weight"] = torch.randn(experts, 32, generator=torch.Generator().manual_seed(1)).half()
    for norm in ("q_norm", "k_norm"):
        made[f"{layer}self_attn.{norm}.weight"] = torch.ones(16).half()
    save_file({key: one.contiguous().clone() for key, one in made.items()}, directory / "model.safetensors")
    config |= {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": experts}
    config |= {"num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True, **more}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def rolled(tensor: torch.Tensor, kind: str, outputs: int, count: int) -> torch.Tensor:
    """A tensor of a matrix whose outputs are turned by `count`."""
    axis = output_axis(tensor, kind)
    if axis is None or tensor.shape[axis] == 1:
        return tensor
    # A place is one output, or a word or a block of some.
    return torch.roll(tensor, count * tensor.shape[axis] // outputs, axis)


def first_rows(tensor: torch.Tensor, kind: str, outputs: int, count: int) -> torch.Tensor:
    """A tensor of the matrix that is the first outputs of another."""
    axis = output_axis(tensor, kind)
    if kind == "weight_shape":
        return torch.tensor([count, 32])
    if axis is None or tensor.shape[axis] == 1:
        return tensor
    return tensor.narrow(axis, 0, -(-count * tensor.shape[axis] // outputs))


def output_axis(tensor: torch.Tensor, kind: str) -> int | None:
    """Which dimension of a tensor are the outputs; None where it says nothing of single ones."""
    if kind in ("g_idx", "weight_shape") or tensor.ndim < 2:
        return None
    return tensor.ndim - 1 if kind in LAST else 0
