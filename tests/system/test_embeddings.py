"""Vectors, and scores of images, through the whole system: the same bits while workers come, go live and die."""

import asyncio
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from PIL import Image

from tests.checkpoints import pooling_checkpoint, tiny_checkpoint
from tests.pictures import encoded
from tests.system.conftest import started
from tests.system.scaling import LAYERS_RUN, WORKERS, count, targets, watching
from tests.system.under_load import ExpectedStreams, SystemUnderLoad

pytestmark = [pytest.mark.system, pytest.mark.slow]

RATE = "1e6"  # bytes a second
ASKED = 60


@dataclass
class EmbedderUnderLoad(SystemUnderLoad):
    """A system that is asked for vectors or scores, all at once; the first answers are what all others must be."""

    path: str = "/v1/embeddings"
    bodies: list[dict[str, Any]] = field(default_factory=list)
    made: dict[int, Any] = field(default_factory=dict)

    async def load(self, url: str = "") -> Any:
        made: dict[int, Any] = {}

        async def ask(session: aiohttp.ClientSession, index: int) -> None:
            body = {"model": "m", **self.bodies[index]}
            async with session.post(f"{url or self.system.url}{self.path}", json=body) as answer:
                said = await answer.json()
                assert answer.status == 200, said
                made[index] = said["data"]

        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(ask(session, index) for index in range(len(self.bodies))))
        return made

    def check(self, name: str, records: Any) -> None:
        self.made = self.made or records
        assert records == self.made, name


def bodies_of_texts() -> list[dict[str, Any]]:
    chance = random.Random(4)
    texts = [chance.choices(range(1_000), k=chance.choice([1, 9, 70, 300])) for _ in range(ASKED)]
    return [{"input": text, "encoding_format": "base64"} for text in texts]


def bodies_of_images() -> list[dict[str, Any]]:
    noise = np.random.default_rng(4).integers(0, 256, (ASKED, 70, 90, 3), np.uint8)
    files = [encoded(Image.fromarray(one), "PNG") for one in noise]
    return [{"input": f"data:image/png;base64,{file}", "use_activation": False} for file in files]


@pytest.fixture
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbedderUnderLoad]:
    """Four workers behind slow links."""
    family, options = request.param
    checkpoint = pooling_checkpoint(family, tmp_path) if family == "qwen3" else tiny_checkpoint(family)
    of_images = family == "vit"
    path = "/classify" if of_images else "/v1/embeddings"
    bodies = bodies_of_images() if of_images else bodies_of_texts()
    slow = "--workers", str(WORKERS), "--link-rate", RATE
    with started(tmp_path, *slow, *options, checkpoint=checkpoint) as system:
        yield EmbedderUnderLoad(system, ExpectedStreams("m", [], {}), path=path, bodies=bodies)


def with_options(*options: str) -> pytest.MarkDecorator:
    """A decoder that pools by its last row, an encoder that takes the mean of all, and one of images."""
    given = [pytest.param((family, options), id=family) for family in ("qwen3", "bert", "vit")]
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
