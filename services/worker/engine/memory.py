"""The memory that an engine computes in: allocated and touched at the start, and kept for every model."""

from concurrent.futures import Executor

import torch
from torch.nn.functional import embedding

from livescale.services.worker.engine.heap import Heap
from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.kv_store import allocate_host_kv_memory, allocate_kv_memory
from livescale.services.worker.engine.matrices import bytes_of, copied_matrices
from livescale.services.worker.engine.sampling import choose_tokens
from livescale.services.worker.scheduling.batch import TokenSampling
from livescale.shared.memory.devices import CPU
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.requests import Sampling

STEP_BYTES = 64 << 20  # touched for what steps compute, or the first ones of a new instance would wait for pages


class EngineMemory:
    """KV memory on `device`, that of the host, and on CPUs what steps and copies of matrices take.

    `thread` allocates; its calls are carried out in their order.
    """

    def __init__(self, thread: Executor, device: str, kv_bytes: int, host_kv_bytes: int) -> None:
        self._on_cpu = device == CPU
        self._heap = Heap()
        self._kv = thread.submit(allocate_kv_memory, kv_bytes, device)
        self._host_kv = thread.submit(allocate_host_kv_memory, host_kv_bytes, device)
        self._steps = thread.submit(self._heap.have, STEP_BYTES if self._on_cpu else 0)

    @property
    def kv(self) -> torch.Tensor:
        """The bytes of the KV cache. Raises MemoryError where there were too few."""
        return self._kv.result()

    @property
    def host_kv(self) -> torch.Tensor:
        """The bytes of the host for KV that has left the cache. Raises MemoryError where there were too few."""
        return self._host_kv.result()

    def warm_up(self) -> None:
        """Return once all is touched and torch is warm. Raises MemoryError where there was too little."""
        for allocated in (self._kv, self._host_kv, self._steps):
            allocated.result()
        if self._on_cpu:
            warm_up()

    def have_copies(self, manifest: Manifest, kernels: Kernels | None) -> None:
        """Have memory for the matrices that are copied when they arrive. Raises MemoryError where there is too little.

        It is not taken at the start, as most models need no copies.
        """
        if self._on_cpu:
            self._heap.have(bytes_of(copied_matrices(manifest, kernels), manifest.dtype))


@torch.inference_mode()
def warm_up() -> None:
    """Run torch's part of a step once on a CPU, because the first time takes ten times as long.

    Call it on the torch thread, before there is a model: then no request has to wait for it.
    """
    hidden = embedding(torch.tensor([0, 1, 2]), torch.zeros(4, 32, dtype=torch.bfloat16))
    choose_tokens(hidden[torch.tensor([1])], [TokenSampling(Sampling(temperature=0.0), 0)])
