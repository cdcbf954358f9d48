"""What runs a model in a live scale under test, and which tokens it would make alone."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import torch
from msgspec import msgpack
from msgspec.structs import replace
from torch._C._distributed_c10d import HashStore

from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.contract import LayerwiseRun, Runner
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kernels.variants import choose_kernels
from livescale.services.worker.engine.kv_store import allocate_kv_memory
from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.engine.modelled_steps import even_logprobs
from livescale.services.worker.engine.tensor_parallel import ProcessGroup
from livescale.services.worker.scheduling.batch import Batch, Chosen
from livescale.services.worker.settings import MIB, WorkerSettings
from livescale.shared.messages.parameters import DType, Family, Manifest
from livescale.shared.messages.requests import Submit, TokenLogprobs
from livescale.shared.runtime.role_settings import KvTransferMode
from livescale.shared.runtime.settings import SwitchKv
from tests.checkpoints import tiny_checkpoint
from tests.clocks import LoopClock
from tests.worker.engine.made_up import LATENCY, made_up_tokens
from tests.worker.live.timed import TimedRunner
from tests.worker.serving import Served, serve

BLOCKS = 5  # of the tiny models: the embedding, three layers, the head
CONTEXT = 512
CLOCK = LoopClock(epoch=1e6)


@cache
def parameters(dtype: DType, ranks: int = 1, family: Family = "") -> tuple[Manifest, list[memoryview]]:
    """The parameters of a model of this family, or of one that can be cut: where there are several ranks, those of rank
    0, then of rank 1, and so on."""
    checkpoint = open_checkpoint(tiny_checkpoint(family or ("llama" if ranks == 1 else "qwen2")), dtype, ranks)
    memory = [memoryview(bytearray(block.size_bytes)) for block in checkpoint.layouts]
    assert len(memory) == BLOCKS * ranks
    return checkpoint.manifest([checkpoint.read_block(index, view) for index, view in enumerate(memory)]), memory


class Undisturbed:
    """An instance that nothing disturbs: engines in threads that meet in a process group of gloo's."""

    def __init__(self, dtype: DType, ranks: int, family: Family = "") -> None:
        self._manifest, self._memory = parameters(dtype, ranks, family)
        self._threads = ThreadPoolExecutor(ranks, initializer=torch.set_num_threads, initargs=(1,))
        self._store = HashStore()
        self._engines = list(self._threads.map(self._engine, range(ranks)))
        self._served: dict[bytes, Served] = {}

    def serve(self, request: Submit) -> Served:
        """Serve a request by all ranks, and return what it got from the first. Many tests ask for the same."""
        key = msgpack.encode(request)
        if key not in self._served:
            served = self._threads.map(lambda engine: serve(engine, [(0, request)]), self._engines)
            self._served[key] = next(iter(list(served)))
        return self._served[key]

    def add_adapter(self, manifest: Manifest, block: memoryview) -> None:
        """Have all ranks take an adapter."""
        list(self._threads.map(lambda engine: engine.add_adapter(manifest, block), self._engines))

    def _engine(self, rank: int) -> TorchEngine:
        manifest = self._manifest.of_shard(rank)
        group = ProcessGroup(self._store, rank, manifest.shards, "127.0.0.1") if manifest.shards > 1 else None
        engine = TorchEngine(manifest, allocate_kv_memory(4 * MIB), 16, CONTEXT, choose_kernels("auto").kernels, group)
        for index, view in enumerate(_shard(self._memory, rank)):
            engine.add_block(index, view)
        return engine


def _shard(memory: list[memoryview], rank: int) -> list[memoryview]:
    return memory[rank * BLOCKS : (rank + 1) * BLOCKS]


@cache
def _undisturbed(dtype: DType, ranks: int, family: Family) -> Undisturbed:
    return Undisturbed(dtype, ranks, family)


@dataclass(frozen=True)
class EngineKind:
    """An engine that computes, in this format, as so many `ranks`. Without a `family` it has that of `parameters`."""

    dtype: DType = "float32"
    ranks: int = 1
    kv_bytes: int = MIB
    make_runner: Callable[[WorkerSettings], Runner] = lambda told: TimedRunner(told.kv_bytes, told.block_size)
    switch_kv: SwitchKv = "auto"
    kv_transfer: KvTransferMode = "by-layer"
    family: Family = ""

    @property
    def manifest(self) -> Manifest:
        """The manifest of all ranks together."""
        return parameters(self.dtype, self.ranks, self.family)[0]

    def memory(self, rank: int = 0) -> list[memoryview]:
        """The parameters of a rank, block by block."""
        return _shard(parameters(self.dtype, self.ranks, self.family)[1], rank)

    def damaged(self, blocks: list[int], rank: int = 0) -> list[memoryview]:
        """Return the parameters, with a bit flipped in each of these blocks."""
        memory = [memoryview(bytearray(view)) for view in self.memory(rank)]
        for block in blocks:
            memory[block][block] ^= 1
        return memory

    def alone(self, request: Submit) -> list[int]:
        """All tokens of a request, as one instance makes them that nothing disturbs."""
        return self._alone(request).tokens["alone"]

    def told(self, request: Submit) -> list[TokenLogprobs]:
        """What is told of these tokens, where the request asks for it."""
        return [] if request.sampling.logprobs is None else self._alone(request).logprobs["alone"]

    def _alone(self, request: Submit) -> Served:
        return self.undisturbed().serve(replace(request, request_id="alone", generated=[]))

    def undisturbed(self) -> Undisturbed:
        """An instance of this kind that nothing disturbs."""
        return _undisturbed(self.dtype, self.ranks, self.family)


class ModelledKind(EngineKind):
    """An engine that computes nothing."""

    def alone(self, request: Submit) -> list[int]:
        return made_up_tokens(self.manifest.version, self.manifest.config.vocab_size, request)

    def told(self, request: Submit) -> list[TokenLogprobs]:
        count, vocab_size = request.sampling.logprobs, self.manifest.config.vocab_size
        return [] if count is None else [even_logprobs(token, count, vocab_size) for token in self.alone(request)]


FLOAT32, BFLOAT16 = EngineKind("float32"), EngineKind("bfloat16")
MODELLED = ModelledKind(make_runner=lambda told: ModelledRunner(told.kv_bytes, told.block_size, LATENCY, 1.0, CLOCK))


class Noting(ModelledRunner):
    """Notes how many requests each layer is run of, and each step."""

    layers: list[int]
    steps: list[int]

    async def run_layer(self, partials: Sequence[LayerwiseRun]) -> None:
        self.layers.append(len(partials))
        await super().run_layer(partials)

    async def step(self, batch: Batch) -> Chosen:
        self.steps.append(len({piece.request_id for piece in batch.chunks}))
        return await super().step(batch)


def noting(layers: list[int], steps: list[int]) -> EngineKind:
    """Have all engines note their calls in the same lists."""

    def make(told: object) -> Noting:
        runner = Noting(1 << 20, 16, LATENCY, 1.0, CLOCK)
        runner.layers, runner.steps = layers, steps
        return runner

    return ModelledKind(make_runner=make)
