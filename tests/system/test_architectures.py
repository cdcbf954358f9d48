"""Architectures with windows, norms of heads and outputs, rotations by layer, experts, latents and learned positions,
through the whole system.

All streams have the tokens of an undisturbed run, past the window too.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from livescale.shared.messages.parameters import Family
from tests.system.conftest import started
from tests.system.scaling import WORKERS, check_a_killed_source, targets, watching
from tests.system.under_load import SystemUnderLoad, at_once, ranks_of

pytestmark = [pytest.mark.system, pytest.mark.slow]

FAMILIES: tuple[Family, ...] = ("mistral", "gemma3_text", "mixtral", "gpt_oss", "gpt2", "opt", "deepseek_v3")
RATE = "1e6"  # bytes a second


def with_options(*options: str) -> pytest.MarkDecorator:
    """Each architecture in a system with these options."""
    given = [pytest.param((family, options), id=family) for family in FAMILIES]
    return pytest.mark.parametrize("loaded", given, indirect=True)


@pytest.fixture
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SystemUnderLoad]:
    """Four workers behind slow links, and what an undisturbed engine answers."""
    family, options = request.param
    streams = at_once("m", "float32", 9, 80, family, ranks=ranks_of(options))
    with started(tmp_path, "--workers", str(WORKERS), "--link-rate", RATE, *options, family=family) as system:
        yield SystemUnderLoad(system, streams)


@with_options("--live", "zigzag")
async def test_requests_go_on_when_their_source_is_killed_in_a_live_scale(loaded: SystemUnderLoad) -> None:
    async with watching(loaded) as scaling:
        await check_a_killed_source(scaling)


@with_options("--live", "pipeline")
async def test_a_pipeline_makes_the_tokens_of_an_undisturbed_run(loaded: SystemUnderLoad) -> None:
    async with watching(loaded) as scaling:
        watch = scaling.watch
        await scaling.rest(1)
        await scaling.have(4)
        await watch.until(lambda: any(one.pipeline for one in watch.reports.values()), "a pipeline serves")
        loading = scaling.load()
        await watch.until(lambda: len(watch.serving("m")) == 4, "all serve")
        await scaling.check("pipeline", loading)


@with_options("--live", "zigzag", "--tensor-parallel-size", "2")
async def test_two_ranks_go_live_with_the_tokens_of_an_undisturbed_run(loaded: SystemUnderLoad) -> None:
    async with watching(loaded) as scaling:
        watch = scaling.watch
        await scaling.rest(1, ranks=2)
        await scaling.have(2)
        await watch.until(lambda: len(targets(scaling)) == 1, "it is live")
        loading = scaling.load()
        await watch.until(lambda: len(watch.serving()) == WORKERS, "all serve")
        loaded.check("ranks", await loading)
