"""What a bench makes anew, and how it tells a system what to be."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from livescale.load.bench.system import Launcher, renewable


async def test_what_is_renewed_has_ended_before_the_next_begins() -> None:
    course: list[str] = []

    @asynccontextmanager
    async def make() -> AsyncIterator[int]:
        number = len(course)
        course.append(f"begin {number}")
        yield number
        course.append(f"end {number}")

    async with renewable(make) as made:
        assert made.now == 0
        await made.renew()
        assert made.now == 2
    assert course == ["begin 0", "end 0", "begin 2", "end 2"]


async def test_a_system_with_a_wrong_option_is_not_started(tmp_path: Path) -> None:
    launcher = Launcher(lambda line: None, lambda name, line: None)
    with pytest.raises(TypeError, match="wokers"):
        async with launcher.start(tmp_path, {}, wokers=2):
            pass
