"""What bounds every engine on this core: how fast matrices multiply, how fast memory is read."""

import time
from pathlib import Path

import torch

from load.bench.engine_arithmetic import layer_shapes
from load.peers.member import serve
from load.peers.questions import Answer, Failed, Multiply, Question, Rate, Read, Ready, Start, Took
from load.peers.stopwatch import Stopwatch
from shared.model_config import load_model_config

READ_BYTES = 512 << 20  # many times what caches hold
LAYERS = 4  # in turn, so that matrices come from memory where those of a whole model would
PASSES = 3


class Roof:
    """The matrices of a checkpoint's layers, with random values, laid out for oneDNN in bfloat16."""

    @torch.inference_mode()
    def __init__(self, start: Start) -> None:
        torch.set_num_threads(1)
        config = load_model_config(Path(start.checkpoint))
        reorder = torch.ops.mkldnn._reorder_linear_weight
        self._layers = config.num_hidden_layers
        self._shapes = layer_shapes(config)
        self._matrices = [
            (columns, reorder(torch.randn(rows, columns).bfloat16(), None))
            for _ in range(LAYERS)
            for rows, columns in self._shapes
        ]
        self._memory = torch.ones(READ_BYTES // 8, dtype=torch.int64)
        self.ready = Ready(time.monotonic() - start.began)

    def answer(self, question: Question) -> Answer:
        match question:
            case Multiply(rows):
                return self._multiply(rows)
            case Read():
                return self._read()
            case _:
                return Failed(f"a roof does not answer {type(question).__name__}")

    @torch.inference_mode()
    def _multiply(self, rows: int) -> Took:
        """CPU seconds of all layers, which are several times those that are here."""
        inputs = {columns: torch.randn(rows, columns).bfloat16() for _, columns in self._shapes}
        multiply = torch.ops.mkldnn._linear_pointwise
        watch = Stopwatch()
        for _ in range(PASSES):
            for columns, matrix in self._matrices:
                multiply(inputs[columns], matrix, None, "none", [], "")
            watch.mark()
        took = watch.took()
        return Took([min(took.steps) / LAYERS * self._layers], took.wall)

    def _read(self) -> Rate:
        watch = Stopwatch()
        for _ in range(PASSES):
            self._memory.sum()
            watch.mark()
        return Rate(READ_BYTES / min(watch.took().steps))


def main(descriptor: int) -> None:
    serve(descriptor, Roof)
