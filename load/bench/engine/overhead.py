"""Measures what a layer costs besides its kernels, with models so small that kernels take next to no time."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from livescale.load.peers.engine_process import serve
from livescale.load.peers.protocol import Answer, AskLayerCost, EngineFailed, LayerCost, Question, Ready, StartEngine
from livescale.services.worker.engine.kernels.variants import KernelChoice, Kernels, KernelsName, choose_kernels
from livescale.services.worker.engine.runner import EngineRunner
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.settings import MIB, WorkerSettings
from livescale.shared.messages.parameters import Manifest, ModelConfig
from livescale.shared.messages.requests import Submit
from livescale.shared.model.block_layout import block_layouts

FEW, MANY = 4, 28  # layers: what a step costs besides them is the same for both
PROMPT, CONTEXT = 64, 1_024
REPEATS = 5  # of each kernel
NEVER = 4e9


@dataclass(frozen=True)
class StepCost:
    """CPU seconds of a step, and what of that its kernels take when nothing is between them."""

    whole: float
    kernels: float


class Operations(TorchDispatchMode):
    """Keeps the operations of a thread, as they reach torch's kernels."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[partial[object]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        self.seen.append(partial(func, *args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))

    @torch.inference_mode()
    def seconds(self) -> float:
        """Return the seconds of the kernels alone. The cost of calling a kernel that does nothing is left out, so the
        rest of a step is everything outside kernels, including torch's own part."""
        nothing = fastest(partial(torch.ops.aten.alias.default, torch.zeros(1)))
        return sum(max(0.0, fastest(call) - nothing) for call in self.seen)


class TimedKernels:
    """The compiled kernels that a worker would use, where there are any; `seconds` of a thread's time that they
    took so far."""

    def __init__(self, kernels: KernelsName) -> None:
        self.seconds = 0.0
        chosen = choose_kernels(kernels)
        self._kernels = chosen.kernels
        self.chosen = KernelChoice(chosen.variant, None if chosen.kernels is None else cast(Kernels, self))

    def __getattr__(self, name: str) -> object:
        kernel = getattr(self._kernels, name)
        if not callable(kernel):
            return kernel

        def timed(*numbers: float) -> object:
            began = time.thread_time()
            result: object = kernel(*numbers)
            self.seconds += time.thread_time() - began
            return result

        return timed


def fastest(call: Callable[[], object]) -> float:
    """Seconds: whatever else runs on this core meanwhile only makes it slower."""

    def once() -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    return min(once() for _ in range(REPEATS))


class PythonCost:
    """Answers questions about the cost of a layer; it uses nothing of the checkpoint."""

    def __init__(self, start: StartEngine) -> None:
        self._kernels = cast(KernelsName, start.kernels)
        self.ready = Ready(time.monotonic() - start.began)

    def answer(self, question: Question) -> Answer:
        if not isinstance(question, AskLayerCost):
            return EngineFailed(f"this process does not answer {type(question).__name__}")
        few, many = (asyncio.run(measure(layers, question, self._kernels)) for layers in (FEW, MANY))
        return layer_cost(few, many)


def layer_cost(few: StepCost, many: StepCost) -> LayerCost:
    """The cost of a layer, from the layers that one model has and the other has not."""
    layers = MANY - FEW
    layer = (many.whole - few.whole) / layers
    return LayerCost(layer, layer - (many.kernels - few.kernels) / layers)


async def measure(layers: int, question: AskLayerCost, kernels: KernelsName) -> StepCost:
    """Run steps in which `question.rows` requests decode, in a model of so many layers."""
    rows, steps = question.rows, question.steps
    settings = WorkerSettings(kv_bytes=64 * MIB, max_num_seqs=rows)
    timed = TimedKernels(kernels)
    runner = EngineRunner(settings.kv_bytes, settings.block_size, settings.threads, kernels=timed.chosen)
    try:
        manifest = small_model(layers)
        limits = settings.limits(manifest.config, CONTEXT, await runner.load(manifest, CONTEXT))
        for block in manifest.blocks:
            await runner.add_block(block.index, memoryview(bytearray(block.size_bytes)))
        scheduler = Scheduler(limits)
        for number in range(rows):
            scheduler.add(request(number))
        await run(scheduler, runner, timed, steps)  # prefill, and what is slow at first
        costs = await run(scheduler, runner, timed, steps)
        operations = Operations()
        # It sees the thread that it is entered on.
        await runner.call(operations.__enter__)
        await run(scheduler, runner, timed, 1)
        await runner.call(lambda: operations.__exit__(None, None, None))  # type: ignore[no-untyped-call]
        compiled = median(cost.kernels for cost in costs)
        return StepCost(median(cost.whole for cost in costs), compiled + await runner.call(operations.seconds))
    finally:
        await runner.close()


async def run(scheduler: Scheduler, runner: EngineRunner, timed: TimedKernels, steps: int) -> list[StepCost]:
    """CPU seconds that the engine needed for each, and its compiled kernels."""
    costs = []
    for _ in range(steps):
        batch = scheduler.next_batch()
        assert batch is not None
        began, before = time.process_time(), timed.seconds
        chosen = await runner.step(batch)
        costs.append(StepCost(time.process_time() - began, timed.seconds - before))
        scheduler.complete(batch, chosen, 0.0)
    return costs


def small_model(layers: int) -> Manifest:
    """The manifest of a model whose parameters are all zero."""
    config = ModelConfig(
        family="llama",
        vocab_size=256,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        max_position_embeddings=CONTEXT,
    )
    blocks = [layout.block(0) for layout in block_layouts(config, "bfloat16")]
    return Manifest(version="small", config=config, dtype="bfloat16", blocks=blocks)


def request(number: int) -> Submit:
    tokens = CONTEXT - PROMPT
    return Submit(
        request_id=f"r{number}", model="small", gateway="none", prompt=[1] * PROMPT, max_tokens=tokens, deadline=NEVER
    )


def main(descriptor: int) -> None:
    serve(descriptor, PythonCost)
