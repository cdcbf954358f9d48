"""What runs a model in a live scale under test, and which tokens it would make alone."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from msgspec.structs import replace

from services.host.checkpoint import open_checkpoint
from services.worker.engine.contract import Runner
from services.worker.engine.engine import Engine
from services.worker.engine.kernels.contract import choose_kernels
from services.worker.engine.kv_store import allocate_kv_memory
from services.worker.engine.modelled import ModelledRunner
from services.worker.settings import MIB, WorkerSettings
from shared.messages.parameters import DType, Manifest
from shared.messages.requests import Submit
from shared.settings import SwitchKv
from shared.world import LoopClock
from tests.made import tiny
from tests.worker.engine.made_up import LATENCY, made_up_tokens
from tests.worker.live.timed import TimedRunner
from tests.worker.serving import serve

CONTEXT = 512
CLOCK = LoopClock(epoch=1e6)


@cache
def parameters(dtype: DType) -> tuple[Manifest, list[memoryview]]:
    checkpoint = open_checkpoint(tiny("llama"), dtype)
    memory = [memoryview(bytearray(block.size_bytes)) for block in checkpoint.layouts]
    return checkpoint.manifest([checkpoint.read_block(index, view) for index, view in enumerate(memory)]), memory


BLOCKS = len(parameters("float32")[1])


@cache
def _engine(dtype: DType) -> Engine:
    manifest, memory = parameters(dtype)
    engine = Engine(manifest, allocate_kv_memory(4 * MIB), 16, CONTEXT, choose_kernels("auto"))
    for index, view in enumerate(memory):
        engine.add_block(index, view)
    return engine


@dataclass(frozen=True)
class Kind:
    """An engine that computes, in this format."""

    dtype: DType = "float32"
    make_runner: Callable[[WorkerSettings], Runner] = lambda told: TimedRunner(told.kv_bytes, told.block_size)
    switch_kv: SwitchKv = "auto"

    @property
    def manifest(self) -> Manifest:
        return parameters(self.dtype)[0]

    @property
    def memory(self) -> list[memoryview]:
        """The parameters, block by block."""
        return parameters(self.dtype)[1]

    def damaged(self, blocks: list[int]) -> list[memoryview]:
        """The parameters, with another bit in each of these."""
        memory = [memoryview(bytearray(view)) for view in self.memory]
        for block in blocks:
            memory[block][block] ^= 1
        return memory

    def alone(self, request: Submit) -> list[int]:
        """All tokens of a request, as one instance makes them that nothing disturbs."""
        first = replace(request, request_id="alone", generated=[])
        return serve(_engine(self.dtype), [(0, first)]).tokens["alone"]


class Modelled(Kind):
    """An engine that computes nothing."""

    def alone(self, request: Submit) -> list[int]:
        return made_up_tokens(self.manifest.version, self.manifest.config.vocab_size, request)


FLOAT32, BFLOAT16 = Kind("float32"), Kind("bfloat16")
MODELLED = Modelled(make_runner=lambda told: ModelledRunner(told.kv_bytes, told.block_size, LATENCY, 1.0, CLOCK))
