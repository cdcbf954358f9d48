"""Keys and values in fp8 through the whole system: a live scale whose source dies.

All streams have the tokens of an undisturbed run.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import started
from tests.system.scaling import WORKERS, check_a_killed_source, watching
from tests.system.under_load import SystemUnderLoad, at_once

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[SystemUnderLoad]:
    """Four workers behind slow links, and what an undisturbed engine answers."""
    streams = at_once("m", "bfloat16", 9, 80, "qwen2", kv_cache_dtype="fp8")
    assert streams.expected != at_once("m", "bfloat16", 9, 80, "qwen2").expected
    words = "--workers", str(WORKERS), "--link-rate", "4e5", "--dtype", "bfloat16", "--live", "zigzag"
    with started(tmp_path, *words, "--kv-cache-dtype", "fp8", checkpoint=tiny_checkpoint("qwen2")) as system:
        yield SystemUnderLoad(system, streams)


async def test_requests_go_on_when_their_source_is_killed_in_a_live_scale(loaded: SystemUnderLoad) -> None:
    async with watching(loaded) as scaling:
        await check_a_killed_source(scaling)
