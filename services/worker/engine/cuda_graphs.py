"""CUDA graphs: one call queues what a layer's matrices do to a slab of rows before attention, and one what they do
after.

Up to 128 requests decode in one slab, so two graphs a layer serve every such batch, with the bits that the same kernels
have one by one. Longer steps keep a GPU busy and are queued kernel by kernel. Attention stays outside: what it reads
differs from step to step. For want of a GPU, this was written without having been run on one.
"""

from collections.abc import Callable

import torch

from livescale.services.worker.engine.layer import Layer
from livescale.services.worker.engine.parameters import GPU_SLAB_ROWS
from livescale.services.worker.engine.rows import Rows
from livescale.shared.messages.parameters import ModelConfig

Job = Callable[[], object]
Capture = Callable[[Job], Job]


class CudaCapture:
    """Captures as graphs what jobs queue on the GPU `device`.

    The graphs share their working memory: they are replayed one at a time, and none leaves anything there.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, job: Job) -> Job:
        """Capture `job`. The function returned does the same again, with what is then where `job` read. Raises
        RuntimeError."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            job()  # what libraries set up at their first call cannot be captured
            # Capture only this thread, as other threads receive and check parameters meanwhile.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                job()
            finally:
                graph.capture_end()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return graph.replay


class LayerGraphs:
    """What the graphs of a model's layers have in common: the slab of rows that they read and write in turn.

    Tensors have the dtype and device of `like`. `capture` makes a graph of a job.
    """

    def __init__(self, config: ModelConfig, like: torch.Tensor, capture: Capture) -> None:
        gathered = config.num_attention_heads * config.head_dim
        kept = 2 * config.num_key_value_heads * config.head_dim
        self.hidden = like.new_zeros(GPU_SLAB_ROWS, config.hidden_size)
        self.projected = like.new_zeros(GPU_SLAB_ROWS, gathered + kept)
        self.gathered = like.new_zeros(GPU_SLAB_ROWS, gathered)
        self.capture = capture


class GraphedLayer:
    """`layer` by graphs, where its rows are one slab.

    They are captured at once, with the addresses of the layer's parameters, and end with this object: a model that is
    loaded later makes its own.
    """

    def __init__(self, layer: Layer, graphs: LayerGraphs) -> None:
        self._layer = layer
        self._graphs = graphs
        self._project = graphs.capture(lambda: graphs.projected.copy_(layer.project(graphs.hidden)))
        self._finish = graphs.capture(lambda: graphs.hidden.copy_(layer.finish(graphs.gathered, graphs.hidden)))

    def __call__(self, hidden: torch.Tensor, rows: Rows) -> torch.Tensor:
        """`[row, hidden]` -> `[row, hidden]`, valid until the next call of any layer."""
        if len(hidden) != GPU_SLAB_ROWS:
            return self._layer(hidden, rows)
        graphs = self._graphs
        graphs.hidden.copy_(hidden)
        self._project()
        graphs.gathered.copy_(rows.attend(self._layer.index, graphs.projected))
        self._finish()
        return graphs.hidden
