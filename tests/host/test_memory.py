"""How models get into a host's memory from disk, and how they go."""

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from livescale.services.host.disk import ThreadDisk
from livescale.services.host.stored import Stored
from livescale.shared.bus.contract import Refusal
from tests.checkpoints import copy_checkpoint, tiny_checkpoint
from tests.host.local import LocalHost, SlowDisk, in_virtual_time, local_host


async def refused(here: LocalHost, path: Path, **spec: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await here.read(path, **spec)
    return caught.value


def spoil(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = torch.inf
    save_file(tensors, directory / "model.safetensors")


def test_a_model_that_does_not_fit_is_refused_with_the_setting_to_change() -> None:
    async def main() -> None:
        async with local_host(cache_bytes=3 << 20) as here:
            await here.read(tiny_checkpoint("llama"))
            error = await refused(here, tiny_checkpoint("qwen2"), model="second")
            assert error.code == 409
            assert "--cache-bytes" in error.message
            assert (await here.whole()).manifest is not None

    in_virtual_time(main())


def test_a_model_that_turns_out_bad_is_told_and_its_memory_given_back(tmp_path: Path) -> None:
    async def main() -> None:
        directory = copy_checkpoint("qwen2", tmp_path)
        spoil(directory)
        async with local_host() as here:
            await here.read(directory)
            read = await here.whole()
            assert read.manifest is None
            assert "mlp.up_proj.weight holds NaN or infinity" in (read.error or "")
            await asyncio.sleep(1)
            assert (here.reports[-1].holdings, here.reports[-1].cache_bytes) == ([], 0)
            (directory / "model.safetensors").write_bytes((tiny_checkpoint("qwen2") / "model.safetensors").read_bytes())
            await here.read(directory)
            assert (await here.whole(2)).manifest is not None

    in_virtual_time(main())


def test_models_are_read_one_after_the_other() -> None:
    async def main() -> None:
        async with local_host(SlowDisk()) as here:
            await here.read(tiny_checkpoint("llama"), model="a")
            await here.read(tiny_checkpoint("qwen2"), model="b")
            await here.whole(2)
            assert [read.model for read in here.reads] == ["a", "b"]
            halves = [report for report in here.reports if len(report.holdings) == 2 and report.holdings[1].ready]
            assert all(len(report.holdings[0].ready) == 5 for report in halves)

    in_virtual_time(main())


def test_another_version_is_read_once_the_first_is_whole_and_both_are_there_until_one_is_released() -> None:
    async def main() -> None:
        async with local_host(SlowDisk()) as here:
            await here.read(tiny_checkpoint("llama"))
            assert "still being read" in (await refused(here, tiny_checkpoint("qwen2"))).message
            first = (await here.whole()).manifest
            await here.read(tiny_checkpoint("qwen2"))
            second = (await here.whole(2)).manifest
            assert first is not None
            assert second is not None
            assert first.version != second.version
            await asyncio.sleep(1)
            assert len(here.reports[-1].holdings) == 2
            await here.release(first.version)
            await here.release(first.version)
            await asyncio.sleep(1)
            assert [one.version for one in here.reports[-1].holdings] == [second.version]
            assert here.reports[-1].cache_bytes == second.size_bytes

    in_virtual_time(main())


def test_files_that_have_changed_are_read_anew_and_the_same_content_takes_no_more_memory(tmp_path: Path) -> None:
    async def main() -> None:
        disk, directory = SlowDisk(), copy_checkpoint("qwen2", tmp_path)
        async with local_host(disk) as here:
            await here.read(directory)
            first = await here.whole()
            os.utime(directory / "model.safetensors", ns=(1, 1))
            assert (await here.read(directory)).manifest is None
            assert (await here.whole(2)).manifest == first.manifest
            await asyncio.sleep(1)
            assert len(here.reports[-1].holdings) == 1
            tensors = load_file(directory / "model.safetensors")
            tensors["model.layers.1.mlp.up_proj.weight"][0, 0] += 1
            save_file(tensors, directory / "model.safetensors")
            await here.read(directory)
            changed = (await here.whole(3)).manifest
            assert changed is not None
            assert first.manifest is not None
            assert changed.version != first.manifest.version

    in_virtual_time(main())


def test_what_is_being_read_or_waits_for_its_turn_can_be_released() -> None:
    async def main() -> None:
        disk = SlowDisk()
        async with local_host(disk) as here:
            await here.read(tiny_checkpoint("llama"), model="m")
            await here.read(tiny_checkpoint("llama"), model="waiting")
            await here.read(tiny_checkpoint("qwen2"), model="last")
            await asyncio.sleep(2.5)
            await here.release("", "waiting")
            await here.release("")
            assert (await here.whole()).model == "last"
            assert len(here.reads) == 1
            await asyncio.sleep(1)
            assert [one.model for one in here.reports[-1].holdings] == ["last"]

    in_virtual_time(main())


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
    """A disk on which a file is cut short while it is read."""

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
        async with local_host(FailingDisk(failure)) as here:
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
        async with local_host(TruncatingDisk(directory / "model.safetensors")) as here:
            await here.read(directory)
            failed = await here.whole()
            assert failed.manifest is None
            assert "model.safetensors" in (failed.error or "")
            await here.until(lambda: here.reports[-1].cache_bytes == 0)

    in_virtual_time(main())
