"""Many workers whose engines are modelled, on a machine that could not compute for them: scaling, tokens, memory."""

import asyncio
import json
import random
import re
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from livescale.load.records import Ask
from livescale.shared.messages.requests import Sampling
from livescale.shared.model.latency import MADE_UP
from tests.system.conftest import MIB, System, started
from tests.system.scaling import HANDED_OVER, LAYERS_RUN, count, targets, watching
from tests.system.under_load import ExpectedStreams, SystemUnderLoad
from tests.worker.engine.made_up import made_up_tokens
from tests.worker.requests import submit

WORKERS = 12
BUSY = 8
RATE = 1e6  # bytes a second: four seconds for a whole model
ARENA_BYTES = 8 * MIB
# A worker without torch, its parameters included: three times less than with it.
MOST_RESIDENT_BYTES = 160 * MIB
VOCABULARY = 1_019
STREAMS, TOKENS_EACH = 40, 24
SOME, MANY = ((1, 60, 300), 0.05), ((300, 900), 0.0)  # lengths of prompts, seconds between them; many are a queue


def make_streams(version: str, lengths: Sequence[int], apart_seconds: float) -> ExpectedStreams:
    """Some greedy, some sampled, and what any modelled engine answers."""
    chance = random.Random(5)
    asks = [
        Ask(
            index,
            index * apart_seconds,
            chance.choices(range(1_000), k=chance.choice(lengths)),
            TOKENS_EACH,
            0.0 if index % 3 == 0 else 0.8,
            index,
        )
        for index in range(STREAMS)
    ]
    expected = {}
    for ask in asks:
        sampling = Sampling(temperature=ask.temperature, seed=ask.seed)
        request = submit(str(ask.index), ask.prompt, max_tokens=ask.max_tokens, sampling=sampling)
        expected[ask.index] = made_up_tokens(version, VOCABULARY, request)
    return ExpectedStreams("m", asks, expected)


def warning(system: System, path: str) -> object:
    with urllib.request.urlopen(system.url + path, timeout=120) as answer:
        body = json.load(answer)
    return body["warning"] if path == "/ready" else body["data"][0]["livescale"]["warning"]


def resident_bytes(pid: int) -> int:
    return int(re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) * 1024


@pytest.mark.system
@pytest.mark.slow
async def test_a_small_machine_scales_from_one_to_eight_while_streams_run(tmp_path: Path) -> None:
    modelled = "--engine", "modelled", "--engine-profile", "llama2-7b-h800"
    with started(tmp_path, "--workers", str(WORKERS), *modelled, "--arena-bytes", str(ARENA_BYTES)) as system:
        status = system.status()
        assert {row["engine"] for row in status["workers"]} == {"modelled"}
        assert MADE_UP in (tmp_path / "up.log").read_text()
        assert warning(system, "/ready") == warning(system, "/v1/models") == MADE_UP
        async with watching(SystemUnderLoad(system, make_streams(status["models"][0]["version"], *SOME))) as scaling:
            loading = scaling.load()
            await asyncio.sleep(0.2)
            await scaling.have(BUSY)
            await scaling.watch.until(lambda: len(scaling.watch.serving()) == BUSY, f"{BUSY} serve")
            await scaling.check("1 to 8", loading)
        pids = [row["pid"] for row in status["workers"]]
        assert len(pids) == WORKERS
        assert max(map(resident_bytes, pids)) < MOST_RESIDENT_BYTES


@pytest.mark.system
@pytest.mark.slow
async def test_two_instances_help_six_that_load_and_all_tokens_are_right(tmp_path: Path) -> None:
    live = "--live", "zigzag", "--live-every-hop", "--link-rate", str(RATE)
    options = "--workers", str(BUSY), "--engine", "modelled", "--engine-profile", "llama2-7b-h800", *live
    with started(tmp_path, *options, "--arena-bytes", str(ARENA_BYTES)) as system:
        version = system.status()["models"][0]["version"]
        async with watching(SystemUnderLoad(system, make_streams(version, *MANY))) as scaling:
            await scaling.have(2)
            await scaling.watch.until(lambda: len(scaling.watch.serving()) == 2, "two serve")
            await scaling.have(BUSY)
            await scaling.watch.until(lambda: bool(targets(scaling)), "somebody is live")
            loading = scaling.load()
            await scaling.watch.until(lambda: len(scaling.watch.serving()) == BUSY, f"{BUSY} serve")
            await scaling.check("2 to 8, live", loading)
            assert await count(scaling, LAYERS_RUN) > 0
            assert await count(scaling, HANDED_OVER) > 0
