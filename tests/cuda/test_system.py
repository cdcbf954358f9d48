"""The main job on GPUs, as its user starts it."""

import asyncio
from pathlib import Path

import pytest
import torch

from livescale.load.rightness import CheckedStream, check_streams
from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import start, stop
from tests.system.test_system import asks, send


@pytest.mark.system
async def test_a_model_is_served_from_gpus_and_its_tokens_are_right(tmp_path: Path) -> None:
    workers = min(2, torch.cuda.device_count())
    system = await asyncio.to_thread(start, tmp_path, "--device", "cuda", "--workers", str(workers))
    try:
        requests = asks(10, 5.0, seed=3)
        sending = asyncio.create_task(send(system, requests))
        if workers > 1:
            await asyncio.to_thread(system.command, "scale", "m", "--instances", "2", "--wait")
        records = await sending
        rows = [row for row in system.status()["workers"] if row["model"] == "m"]
        assert {row["device"] for row in rows} == {f"cuda:{index}" for index in range(workers)}
        assert {path for row in rows for path in row["paths"].values()} <= {"cuda_ipc", "cuda_copy, cma"}
    finally:
        assert await asyncio.to_thread(stop, system) == 0
    streams = [CheckedStream(prompt=ask.prompt, generated=records[ask.index].token_ids) for ask in requests]
    verdict = check_streams(tiny_checkpoint("llama"), streams, "float32")
    assert verdict.ok, str(verdict)
