"""This engine making vectors of prompts that arrive together, as a process of `livescale bench embeddings`."""

import time
from pathlib import Path
from typing import cast

import torch

from livescale.load.peers.engine_process import Stopwatch, serve
from livescale.load.peers.protocol import (
    Answer,
    AskVectors,
    EngineFailed,
    Prompts,
    Question,
    Ready,
    StartEngine,
    Vectors,
)
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kernels.variants import KernelsName, choose_kernels
from livescale.services.worker.engine.kv_store import allocate_kv_memory
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.messages.requests import Sampling, Submit

SETTINGS = WorkerSettings(max_num_seqs=32)
NEVER = 4e9


class OwnVectors:
    """A worker's scheduler and engine on one thread, without its messages."""

    def __init__(self, start: StartEngine) -> None:
        torch.set_num_threads(1)
        assert start.dtype != "float64"
        checkpoint = open_checkpoint(Path(start.checkpoint), start.dtype, layout="panels")
        blocks = [memoryview(bytearray(layout.size_bytes)) for layout in checkpoint.layouts]
        manifest = checkpoint.manifest([checkpoint.read_block(index, block) for index, block in enumerate(blocks)])
        chosen = choose_kernels(cast(KernelsName, start.kernels))
        context = manifest.config.max_position_embeddings
        memory = allocate_kv_memory(SETTINGS.kv_bytes)
        self._engine = TorchEngine(manifest, memory, SETTINGS.block_size, context, chosen.kernels)
        for index, block in enumerate(blocks):
            self._engine.add_block(index, block)
        self._limits = SETTINGS.limits(manifest.config, context, self._engine.store.blocks)
        self.ready = Ready(time.monotonic() - start.began, kernels=chosen.variant)

    def answer(self, question: Question) -> Answer:
        if isinstance(question, AskVectors):
            return self._vectors(question.prompts)
        return EngineFailed(f"vectors are all it makes, not {type(question).__name__}")

    def _vectors(self, prompts: Prompts) -> Vectors:
        scheduler, watch, made = Scheduler(self._limits), Stopwatch(), dict[str, bytes]()
        scheduler.keep_prefixes()
        for index, prompt in enumerate(prompts):
            asked = Sampling(pools=True)
            request = Submit(
                request_id=str(index),
                model="m",
                gateway="g",
                prompt=prompt,
                sampling=asked,
                max_tokens=1,
                deadline=NEVER,
            )
            scheduler.add(request)
        while (batch := scheduler.next_batch()) is not None:
            for output in scheduler.complete(batch, self._engine.step(batch), 0.0):
                made[output.row.request_id] = output.row.logprobs[0].pooled
        watch.mark()
        return Vectors([made[str(index)] for index in range(len(prompts))], watch.took())


def main(descriptor: int) -> None:
    serve(descriptor, OwnVectors)
