"""Reading that fails on the way: told, nothing kept, and the host goes on."""

import errno
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path

import pytest

from livescale.services.host.disk import ThreadDisk
from livescale.services.host.stored import Stored
from tests.checkpoints import copy_checkpoint, tiny_checkpoint
from tests.host.site import in_virtual_time, site


class FailingDisk(ThreadDisk):
    """A disk on which the third block of the first model cannot be read."""

    def __init__(self, failure: BaseException) -> None:
        super().__init__()
        self.failure = failure
        self.blocks_read = 0

    async def read(self, stored: Stored, blocks: Mapping[int, memoryview]) -> AsyncGenerator[int, None]:
        async with aclosing(super().read(stored, blocks)) as read:
            async for checksum in read:
                yield checksum
                self.blocks_read += 1
                if self.blocks_read == 2:
                    raise self.failure


class TruncatingDisk(ThreadDisk):
    """A disk on which somebody cuts a file short while it is read."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def read(self, stored: Stored, blocks: Mapping[int, memoryview]) -> AsyncGenerator[int, None]:
        os.truncate(self.file, self.file.stat().st_size // 2)
        return super().read(stored, blocks)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_failed_read_is_told_its_memory_given_back_and_the_model_can_be_read_again(
    failure: BaseException, words: str
) -> None:
    async def main() -> None:
        async with site(FailingDisk(failure)) as here:
            await here.read(tiny_checkpoint("llama"))
            failed = await here.whole()
            assert failed.manifest is None
            assert words in (failed.error or "")
            await here.until(lambda: here.reports[-1].cache_bytes == 0)
            assert here.reports[-1].holdings == []
            await here.read(tiny_checkpoint("llama"))
            assert (await here.whole(2)).manifest is not None

    in_virtual_time(main())


def test_a_file_that_is_cut_short_while_it_is_read_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        directory = copy_checkpoint("qwen2", tmp_path)
        async with site(TruncatingDisk(directory / "model.safetensors")) as here:
            await here.read(directory)
            failed = await here.whole()
            assert failed.manifest is None
            assert "model.safetensors" in (failed.error or "")
            await here.until(lambda: here.reports[-1].cache_bytes == 0)

    in_virtual_time(main())
