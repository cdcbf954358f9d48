"""Layers whose MLP is many experts (Shazeer et al.): how config.json describes them, and how their tensors lie. Pure.

A block has one tensor of each kind for all experts, `[expert, out, in]`. A checkpoint has a tensor for each expert, or,
as transformers 5 has them in memory, gate and up of all experts as one; or they are fused as in gpt-oss.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from livescale.shared.messages.layers import Experts
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile

STACK = ".mlp.experts."
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


class Stacked(NamedTuple):
    """Rows of a tensor of this shape that has the matrices of all experts, one below the other."""

    name: str
    shape: list[int]
    start: int
    rows: int


@dataclass(frozen=True)
class Fused:
    """An expert's matrix or bias in a tensor of gpt-oss's checkpoints, which has those of all experts.

    Of the outputs of an expert it has every `step`th one, from `first` on: those of gate and up take turns.
    """

    expert: int
    first: int
    step: int


def fused_source(part: str) -> tuple[str, Fused] | None:
    """Where a part of a layer, such as mlp.experts.3.up_proj, lies in such a checkpoint; None for other parts."""
    number = NUMBER.search(part)
    if number is None:
        return None
    if part.endswith(".down_proj"):
        return "mlp.experts.down_proj", Fused(int(number[0]), 0, 1)
    return "mlp.experts.gate_up_proj", Fused(int(number[0]), int(part.endswith(".up_proj")), 2)


def fused_shapes(config: ModelConfig) -> dict[str, list[int]]:
    """The tensors of experts that such a checkpoint has, by their names."""
    experts, shapes = config.experts, dict[str, list[int]]()
    assert experts is not None
    for layer in range(config.num_hidden_layers):
        quantization = config.quantization
        packing = None if quantization is None else quantization.packing(layer, "mlp.experts.gate_proj")
        for name, outputs, inputs in (
            ("gate_up_proj", 2 * experts.features, config.hidden_size),
            ("down_proj", config.hidden_size, experts.features),
        ):
            whole = f"model.layers.{layer}.mlp.experts.{name}"
            shapes[f"{whole}_bias"] = [experts.count, outputs]
            if packing is None:
                shapes[whole] = [experts.count, inputs, outputs]
            else:
                groups = -(-inputs // packing.group)
                shapes[f"{whole}_blocks"] = [experts.count, outputs, groups, packing.group // 2]
                shapes[f"{whole}_scales"] = [experts.count, outputs, groups]
    return shapes


def read_experts(config: ConfigFile, count: int, chosen: int, features: int, *, normalized: bool = True) -> Experts:
    """The experts that a configuration describes, with what transformers takes where it says nothing.

    Both spellings of their number are read. Raises CheckpointError.
    """
    count = config.size("num_local_experts", config.size("num_experts", count))
    chosen = config.size("num_experts_per_tok", chosen)
    if chosen > count:
        raise CheckpointError(f"num_experts_per_tok is {chosen}, and there are {count} experts")
    return Experts(count=count, chosen=chosen, features=features, normalized=normalized)


def each_name(name: str, experts: range) -> list[str]:
    """The names by which a checkpoint has a tensor of all `experts`: one for each. Other tensors have one name."""
    before, stack, after = name.partition(STACK)
    return [f"{before}{stack}{number}.{after}" for number in experts] if stack else [name]


def tensor_of_all(name: str) -> str:
    """The tensor of all experts that has this one of an expert; any other name is its own."""
    before, stack, after = name.partition(STACK)
    return f"{before}{stack}{after.partition('.')[2]}" if stack else name


def renamed_part(part: str, renamed: Mapping[str, str]) -> str:
    """What a checkpoint calls a part of a layer; `*` stands for the number of an expert."""
    number = NUMBER.search(part)
    if number is None:
        return renamed.get(part, part)
    return renamed.get(NUMBER.sub("*", part, count=1), part).replace("*", number[0])


def stacked_sources(config: ModelConfig) -> Iterator[tuple[str, Stacked]]:
    """Where the tensors of experts lie in a checkpoint that has those of all experts as one, by our names."""
    experts, hidden = config.experts, config.hidden_size
    if experts is None:
        return
    for layer in range(config.num_hidden_layers):
        if not config.kind(layer).experts:
            continue
        prefix = f"model.layers.{layer}.mlp"
        yield f"{prefix}.gate.weight", Stacked(f"{prefix}.gate.weight", [experts.count, hidden], 0, experts.count)
        for number in range(experts.count):
            for name, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
                rows, width = (hidden, experts.features) if len(parts) == 1 else (experts.features, hidden)
                shape = [experts.count, len(parts) * rows, width]
                for place, part in enumerate(parts):
                    start = (number * len(parts) + place) * rows
                    ours = f"{prefix}.experts.{number}.{part}.weight"
                    yield ours, Stacked(f"{prefix}.experts.{name}", shape, start, rows)
