"""Vectors through the whole system: the same bits while workers come, go live and die."""

import asyncio
import base64
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.checkpoints import pooling_checkpoint, tiny_checkpoint
from tests.system.conftest import System, start, stop
from tests.system.scaling import LAYERS_RUN, WORKERS, count, targets, watching
from tests.system.under_load import ExpectedStreams, SystemUnderLoad

pytestmark = [pytest.mark.system, pytest.mark.slow]

RATE = "1e6"  # bytes a second
TEXTS = 60


@dataclass
class EmbedderUnderLoad(SystemUnderLoad):
    """A system that is asked for vectors, of all texts at once; the first answers are what all others must be."""

    texts: list[list[int]] = field(default_factory=list)
    vectors: dict[int, bytes] = field(default_factory=dict)

    async def load(self, url: str = "") -> Any:
        made: dict[int, bytes] = {}

        async def ask(session: aiohttp.ClientSession, index: int) -> None:
            body = {"model": "m", "input": self.texts[index], "encoding_format": "base64"}
            async with session.post(f"{url or self.system.url}/v1/embeddings", json=body) as answer:
                said = await answer.json()
                assert answer.status == 200, said
                made[index] = base64.b64decode(said["data"][0]["embedding"])

        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(ask(session, index) for index in range(len(self.texts))))
        return made

    def check(self, name: str, records: Any) -> None:
        self.vectors = self.vectors or records
        assert records == self.vectors, name


@pytest.fixture
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbedderUnderLoad]:
    """Four workers behind slow links."""
    family, options = request.param
    checkpoint = tiny_checkpoint(family) if family == "bert" else pooling_checkpoint(family, tmp_path)
    system: System = start(tmp_path, "--workers", str(WORKERS), "--link-rate", RATE, *options, checkpoint=checkpoint)
    chance = random.Random(4)
    texts = [chance.choices(range(1_000), k=chance.choice([1, 9, 70, 300])) for _ in range(TEXTS)]
    try:
        yield EmbedderUnderLoad(system, ExpectedStreams("m", [], {}), texts=texts)
    finally:
        assert stop(system) == 0


def with_options(*options: str) -> pytest.MarkDecorator:
    """A decoder that pools by its last row, and an encoder that takes the mean of all."""
    given = [pytest.param((family, options), id=family) for family in ("qwen3", "bert")]
    return pytest.mark.parametrize("loaded", given, indirect=True)


@with_options("--live", "zigzag")
async def test_vectors_are_the_same_while_a_source_of_a_live_scale_is_killed(loaded: EmbedderUnderLoad) -> None:
    async with watching(loaded) as scaling:
        watch = scaling.watch
        await scaling.rest(1)
        loaded.check("at rest", await loaded.load())
        [source] = watch.serving()
        await scaling.have(2)
        await watch.until(lambda: len(targets(scaling)) == 1, "it is live")
        loading = scaling.load()
        await watch.until(lambda: bool(watch.speakers), "a request was handed over")
        await scaling.signal(source, signal.SIGKILL)
        watch.lose(source)
        await watch.until(lambda: len(watch.serving("m")) == 2, "two serve")
        loaded.check("source killed", await loading)
        loaded.check("afterwards", await loaded.load())


@with_options("--live", "pipeline")
async def test_a_pipeline_makes_the_same_vectors(loaded: EmbedderUnderLoad) -> None:
    async with watching(loaded) as scaling:
        watch = scaling.watch
        await scaling.rest(1)
        loaded.check("at rest", await loaded.load())
        await scaling.have(4)
        await watch.until(lambda: any(one.pipeline for one in watch.reports.values()), "a pipeline serves")
        loading = scaling.load()
        await watch.until(lambda: len(watch.serving("m")) == 4, "all serve")
        loaded.check("pipeline", await loading)
        loaded.check("afterwards", await loaded.load())


@with_options("--live", "zigzag", "--tensor-parallel-size", "2")
async def test_two_ranks_make_the_same_vectors_while_two_more_go_live(loaded: EmbedderUnderLoad) -> None:
    async with watching(loaded) as scaling:
        watch = scaling.watch
        await scaling.rest(1, ranks=2)
        loaded.check("at rest", await loaded.load())
        await scaling.have(2)
        await watch.until(lambda: len(targets(scaling)) == 1, "it is live")
        loading = scaling.load()
        await watch.until(lambda: len(watch.serving()) == WORKERS, "all serve")
        loaded.check("ranks", await loading)
        assert await count(scaling, LAYERS_RUN) > 0
