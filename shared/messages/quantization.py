"""Matrices of a few bits a number: how they lie in blocks, and how a checkpoint stores them."""

from typing import Annotated, Literal

from msgspec import Meta

from livescale.shared.messages.message import Count, Message, Name

Codes = Literal["int4", "int8", "fp8", "fp4"]
ScaleType = Literal["bfloat16", "float32", "float16", "e8m0", "float32-panel"]
# The tool whose format a checkpoint has: compressed-tensors in its packed form and in others, AutoGPTQ and its
# successors in either version, AutoAWQ, the FP8 of DeepSeek and Qwen3, and the MXFP4 of gpt-oss.
StoredAs = Literal["packed", "plain", "gptq", "gptq_v2", "awq", "fp8", "mxfp4"]


class Packing(Message, frozen=True, kw_only=True):
    """How a matrix is packed. A number is (code - zero) * scale in float32, rounded once to bfloat16.

    Codes are integers without a sign, or the bits of float8_e4m3fn or float4_e2m1fn; scales of e8m0 are the exponents
    of powers of two. So many consecutive inputs, a `group`, have a scale of their own for each output, or in
    `float32-panel` for all outputs of a panel; a group of 0 is all inputs. Without `zeros`, zero is in the middle of
    the integers.
    """

    codes: Codes
    group: Count
    scales: ScaleType
    zeros: bool = False


class Quantization(Message, frozen=True, kw_only=True):
    """Which matrices of a model are packed.

    The part `name` of layer i, such as mlp.up_proj, is packed as `packings[parts[layers[i]][name]]`; it is not packed
    where there is no such entry. Without `layers`, all are as the first of `parts`. In the checkpoint, which is
    `stored` in its own way, so many outputs share a scale, `scale_rows`; 0 is all of them.
    """

    stored: StoredAs
    packings: Annotated[list[Packing], Meta(min_length=1, max_length=64)]
    parts: Annotated[list[dict[Name, Count]], Meta(min_length=1, max_length=64)]
    layers: Annotated[list[Count], Meta(max_length=10_000)] = []
    scale_rows: Count = 1

    def __post_init__(self) -> None:
        if max(self.layers, default=0) >= len(self.parts):
            raise ValueError(f"`layers` name more than `parts` has, {len(self.parts)}")
        if max((number for part in self.parts for number in part.values()), default=0) >= len(self.packings):
            raise ValueError(f"`parts` name more than `packings` has, {len(self.packings)}")

    def packing(self, layer: int, part: str) -> Packing | None:
        """How a part of a layer is packed; None where it is not."""
        number = self.parts[self.layers[layer] if self.layers else 0].get(part)
        return None if number is None else self.packings[number]
