"""CUDA graphs: what a layer's matrices do to a slab of rows is queued by one call before attention and one after it.

Up to 128 requests decode in one slab, so that two graphs a layer serve every such batch, with the bits that the same
kernels have one by one; longer steps, which keep a GPU busy, are queued kernel by kernel. Attention stays outside: what
it reads differs from step to step. Written, for want of a GPU, without having been run on one.
"""

from collections.abc import Callable

import torch

from livescale.services.worker.engine.attention import Rows
from livescale.services.worker.engine.layer import Layer
from livescale.services.worker.engine.parameters import GPU_SLAB_ROWS
from livescale.shared.messages.parameters import ModelConfig

Job = Callable[[], object]
Capture = Callable[[Job], Job]


class CudaCapture:
    """Makes graphs of what jobs queue on the GPU `device`. They share the memory in which they work: they are replayed
    one at a time, and none leaves anything there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, job: Job) -> Job:
        """What does again what `job` did, with what is then where it read. Raises RuntimeError."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            job()  # what libraries set up at their first call cannot be captured
            # Of this thread alone: others receive parameters, and check them, meanwhile.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                job()
            finally:
                graph.capture_end()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return graph.replay


class LayerGraphs:
    """What the graphs of a model's layers have in common: one slab of rows, which they read and write in turn, with the
    dtype and the device of `like`; and how they are captured."""

    def __init__(self, config: ModelConfig, like: torch.Tensor, capture: Capture) -> None:
        gathered = config.num_attention_heads * config.head_dim
        kept = 2 * config.num_key_value_heads * config.head_dim
        self.hidden = like.new_zeros(GPU_SLAB_ROWS, config.hidden_size)
        self.projected = like.new_zeros(GPU_SLAB_ROWS, gathered + kept)
        self.gathered = like.new_zeros(GPU_SLAB_ROWS, gathered)
        self.capture = capture


class GraphedLayer:
    """`layer`, by graphs where rows are one slab. They are captured now, with the addresses of its parameters, and go
    when it goes: what is loaded next makes its own."""

    def __init__(self, layer: Layer, graphs: LayerGraphs) -> None:
        self._layer = layer
        self._graphs = graphs
        self._project = graphs.capture(lambda: graphs.projected.copy_(layer.project(graphs.hidden)))
        self._finish = graphs.capture(lambda: graphs.hidden.copy_(layer.finish(graphs.gathered, graphs.hidden)))

    def __call__(self, hidden: torch.Tensor, rows: Rows) -> torch.Tensor:
        """`[row, hidden]` -> `[row, hidden]`, there until the next call of any layer."""
        if len(hidden) != GPU_SLAB_ROWS:
            return self._layer(hidden, rows)
        graphs = self._graphs
        graphs.hidden.copy_(hidden)
        self._project()
        graphs.gathered.copy_(rows.attend(self._layer.index, graphs.projected))
        self._finish()
        return graphs.hidden
