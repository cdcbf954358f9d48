"""Loads a model as a worker does it: memory first, then block after block as it would arrive."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from livescale.load.peers.protocol import Ready, StartEngine
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.engine.kernels.variants import KernelsName, choose_kernels
from livescale.services.worker.runners import runner_maker
from livescale.services.worker.scheduling.batch import block_bytes
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.memory.arena import Arena, placed_bytes
from livescale.shared.memory.devices import CPU
from livescale.shared.runtime.clock import SystemClock

CONTEXT = 2_304  # of the longest prompt, and some tokens
# KV for all rows of 200 steps beside prompts; the rest is what a worker has by default.
SETTINGS = WorkerSettings(max_num_seqs=32, kv_bytes=2 << 30, host_kv_bytes=256 << 20)


@dataclass(frozen=True)
class LoadedEngine:
    """An engine that has all its blocks, and the limits of its scheduler. `ready` says how long that took."""

    runner: Runner
    limits: SchedulerLimits
    ready: Ready


async def load_engine(start: StartEngine) -> LoadedEngine:
    """Load the checkpoint with the kernels that `start` names."""
    assert start.dtype != "float64"
    checkpoint = open_checkpoint(Path(start.checkpoint), start.dtype, 1, "panels", start.kv_cache_dtype)
    sizes = [block.size_bytes for block in checkpoint.layouts]
    memory = Arena(placed_bytes(sizes)).place(sizes)
    settings = msgspec.structs.replace(SETTINGS, arena_bytes=placed_bytes(sizes))
    kernels = choose_kernels(cast(KernelsName, start.kernels), settings.threads)
    runner = runner_maker(settings, CPU, kernels=kernels)(SystemClock())
    await runner.ready()
    manifest = checkpoint.manifest([checkpoint.read_block(index, view) for index, view in enumerate(memory)])
    kv_blocks = await runner.load(manifest, CONTEXT)
    for index, view in enumerate(memory):
        began = time.monotonic()
        await runner.add_block(index, view)
    last_block = time.monotonic() - began
    host_kv_blocks = SETTINGS.host_kv_bytes // block_bytes(manifest, SETTINGS.block_size)
    limits = SETTINGS.limits(manifest.config, CONTEXT, kv_blocks, host_kv_blocks)
    return LoadedEngine(runner, limits, Ready(time.monotonic() - start.began, last_block, kernels.variant))
