"""Measures what bounds every engine on this core: how fast matrices are multiplied, and how fast memory is read."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import cast

import torch

from livescale.load.bench.engine.cases import layer_shapes
from livescale.load.peers.engine_process import Stopwatch, serve
from livescale.load.peers.protocol import (
    Answer,
    AskMultiply,
    AskRead,
    EngineFailed,
    MemoryRate,
    Question,
    Ready,
    StartEngine,
    StepSeconds,
)
from livescale.services.worker.engine.kernels.variants import Kernels, KernelsName, choose_kernels
from livescale.services.worker.engine.matrices import CompiledLinear
from livescale.shared.model.checkpoint import load_model_config

READ_BYTES = 512 << 20  # many times what caches hold
PASSES = 3
SECONDS = 1.0  # at least, unless a layer takes longer

Multiplied = Callable[[torch.Tensor], torch.Tensor]


class Roof:
    """The matrices of all layers of a checkpoint, with random values: laid out for oneDNN, and for this engine's own
    kernels. There are as many as in the model, so that each comes from memory where it would."""

    @torch.inference_mode()
    def __init__(self, start: StartEngine) -> None:
        torch.set_num_threads(1)
        config = load_model_config(Path(start.checkpoint))
        self._dtype = getattr(torch, start.dtype)
        self._shapes = layer_shapes(config)
        weights = [torch.randn(shape, dtype=self._dtype) for shape in self._shapes]
        kernels = choose_kernels(cast(KernelsName, start.kernels)).kernels
        ways = [for_onednn] if kernels is None else [for_onednn, lambda weight: for_kernels(kernels, weight)]
        layers = range(config.num_hidden_layers)
        self._ways = [[[way(weight) for weight in weights] for _ in layers] for way in ways]
        self._memory = torch.ones(READ_BYTES // 8, dtype=torch.int64)
        self.ready = Ready(time.monotonic() - start.began)

    def answer(self, question: Question) -> Answer:
        match question:
            case AskMultiply(rows):
                return self._multiply(rows)
            case AskRead():
                return read_memory(self._memory)
            case _:
                return EngineFailed(f"a roof does not answer {type(question).__name__}")

    @torch.inference_mode()
    def _multiply(self, rows: int) -> StepSeconds:
        """CPU seconds of all layers, by the way that is the fastest at so many rows."""
        inputs = [torch.randn(rows, columns, dtype=self._dtype) for _, columns in self._shapes]
        began = time.monotonic()
        fastest = min(median(seconds_by_layer(layers, inputs)) * len(layers) for layers in self._ways)
        return StepSeconds([fastest], time.monotonic() - began)


def read_memory(memory: torch.Tensor) -> MemoryRate:
    """How fast one core reads it, at its best."""
    watch = Stopwatch()
    for _ in range(PASSES):
        memory.sum()
        watch.mark()
    return MemoryRate(memory.nbytes / min(watch.took().steps))


def for_onednn(weight: torch.Tensor) -> Multiplied:
    """Laid out for it, where it multiplies this dtype on this CPU."""
    if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return partial(torch.nn.functional.linear, weight=weight)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    multiply = torch.ops.mkldnn._linear_pointwise
    return lambda rows: cast(torch.Tensor, multiply(rows, packed, None, "none", [], ""))


def for_kernels(kernels: Kernels, weight: torch.Tensor) -> Multiplied:
    return CompiledLinear(kernels, {"matrix.weight": weight}, "matrix")


def seconds_by_layer(layers: list[list[Multiplied]], inputs: list[torch.Tensor]) -> list[float]:
    """CPU seconds of each layer, one after the other and the first again after the last."""
    watch, began, number = Stopwatch(), time.monotonic(), 0
    while number == 0 or time.monotonic() < began + SECONDS:
        for multiply, rows in zip(layers[number % len(layers)], inputs, strict=True):
            multiply(rows)
        watch.mark()
        number += 1
    return watch.took().steps


def main(descriptor: int) -> None:
    serve(descriptor, Roof)
