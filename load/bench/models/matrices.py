"""The quantized matrices of a checkpoint alone, as a process of `livescale bench models`."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch

from livescale.load.bench.engine.roofline import PASSES, READ_BYTES, read_memory
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
)
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.kernels.variants import KernelsName, choose_kernels
from livescale.services.worker.engine.matrices import linear_of
from livescale.services.worker.engine.parameters import PackedMatrix, block_tensors


class QuantizedMatrices:
    """Those of all layers. There are as many as in the model, so that each comes from memory where it would."""

    @torch.inference_mode()
    def __init__(self, start: StartEngine) -> None:
        torch.set_num_threads(1)
        chosen = choose_kernels(cast(KernelsName, start.kernels))
        packed = list(packed_matrices(Path(start.checkpoint)))
        self._bytes = sum(one.nbytes for one in packed)
        self._maps = [linear_of(one, chosen.kernels) for one in packed]
        self._inputs = [torch.randn(1, one.inputs, dtype=torch.bfloat16) for one in packed]
        self._memory = torch.ones(READ_BYTES // 8, dtype=torch.int64)
        self.ready = Ready(time.monotonic() - start.began, kernels=chosen.variant)

    def answer(self, question: Question) -> Answer:
        match question:
            case AskMultiply(rows=1):
                return self._multiply()
            case AskRead():
                return read_memory(self._memory)
            case _:
                return EngineFailed(f"matrices alone do not answer {question}")

    @torch.inference_mode()
    def _multiply(self) -> MemoryRate:
        watch = Stopwatch()
        for _ in range(PASSES):
            for multiply, row in zip(self._maps, self._inputs, strict=True):
                multiply(row)
            watch.mark()
        return MemoryRate(self._bytes / min(watch.took().steps))


def packed_matrices(checkpoint: Path) -> Iterator[PackedMatrix]:
    """The quantized matrices of a checkpoint, as they lie in a worker's memory."""
    opened = open_checkpoint(checkpoint, "bfloat16", layout="panels")
    buffers = [memoryview(bytearray(layout.size_bytes)) for layout in opened.layouts]
    manifest = opened.manifest([opened.read_block(index, buffer) for index, buffer in enumerate(buffers)])
    for block, buffer in zip(manifest.blocks, buffers, strict=True):
        for tensor in block_tensors(block, buffer, "bfloat16").values():
            if isinstance(tensor, PackedMatrix):
                yield tensor


def main(descriptor: int) -> None:
    serve(descriptor, QuantizedMatrices)
