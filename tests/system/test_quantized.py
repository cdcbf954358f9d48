"""Quantized models through the whole system: live, over two ranks, and past a death.

All streams have the tokens of an undisturbed run.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from livescale.load.sizes import Quantized
from tests.system.conftest import started
from tests.system.scaling import WORKERS, check_a_killed_source, targets, watching
from tests.system.under_load import SystemUnderLoad, at_once, ranks_of

pytestmark = [pytest.mark.system, pytest.mark.slow]

RATE = "4e5"  # bytes a second


def a_model(quantized: Quantized, *options: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("loaded", [pytest.param((quantized, options), id=quantized)], indirect=True)


@pytest.fixture
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SystemUnderLoad]:
    """Four workers behind slow links, and what an undisturbed engine answers."""
    from livescale.load.make_model import make_model

    quantized, options = request.param
    family = "gpt_oss" if quantized == "mxfp4" else "qwen2"
    made = make_model(tmp_path / "model", family, "tiny", 7, quantized=quantized)
    streams = at_once("m", "bfloat16", 9, 80, checkpoint=made, ranks=ranks_of(options))
    words = "--workers", str(WORKERS), "--link-rate", RATE, "--dtype", "bfloat16", *options
    with started(tmp_path, *words, checkpoint=made) as system:
        yield SystemUnderLoad(system, streams)


@a_model("int4", "--live", "zigzag")
async def test_requests_go_on_when_their_source_is_killed_in_a_live_scale(loaded: SystemUnderLoad) -> None:
    async with watching(loaded) as scaling:
        await check_a_killed_source(scaling)


@a_model("mxfp4", "--live", "zigzag")
async def test_requests_of_experts_in_mxfp4_go_on_when_their_source_is_killed(loaded: SystemUnderLoad) -> None:
    async with watching(loaded) as scaling:
        await check_a_killed_source(scaling)


@a_model("int8", "--live", "zigzag", "--tensor-parallel-size", "2")
async def test_two_ranks_go_live_with_the_tokens_of_an_undisturbed_run(loaded: SystemUnderLoad) -> None:
    async with watching(loaded) as scaling:
        watch = scaling.watch
        await scaling.rest(1, ranks=2)
        await scaling.have(2)
        await watch.until(lambda: len(targets(scaling)) == 1, "it is live")
        loading = scaling.load()
        await watch.until(lambda: len(watch.serving()) == WORKERS, "all serve")
        loaded.check("ranks", await loading)
