"""A model whose version an earlier read left is sent while it is read."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from livescale.services.host.disk import ThreadDisk
from livescale.services.host.stored import Stored
from livescale.shared.bus.contract import Ack, Refusal
from livescale.shared.links.contract import Link
from livescale.shared.links.open import open_link
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.transfers import Send
from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.subjects import SEND
from tests.checkpoints import copy_checkpoint
from tests.host.local import HOST, LocalHost, SlowDisk, in_virtual_time, local_host
from tests.host.receiver import Receiver

SOCKET = LinkSettings(transport="socket")


class KeepingDisk(ThreadDisk):
    """A disk that says when it has kept a model."""

    def __init__(self) -> None:
        super().__init__(keep=True)
        self.kept = asyncio.Event()

    async def keep(self, stored: Stored, manifest: Manifest, blocks: Sequence[memoryview]) -> None:
        await super().keep(stored, manifest, blocks)
        self.kept.set()


class GatedDisk(ThreadDisk):
    """A disk that reads a block when it is told to."""

    def __init__(self) -> None:
        super().__init__(keep=True)
        self.gate = asyncio.Semaphore(0)
        self.broken = False

    async def read(self, stored: Stored, blocks: Mapping[int, memoryview]) -> AsyncGenerator[int, None]:
        async with aclosing(super().read(stored, blocks)) as read:
            async for checksum in read:
                await self.gate.acquire()
                if self.broken:
                    raise CheckpointError("the disk is gone")
                yield checksum


async def read_before(directory: Path) -> Manifest:
    """Have another host read the model and end."""
    disk = KeepingDisk()
    async with local_host(disk) as here:
        await here.read(directory)
        manifest = (await here.whole()).manifest
        assert manifest is not None
        await disk.kept.wait()
    return manifest


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return copy_checkpoint("llama", tmp_path)


@asynccontextmanager
async def reading(directory: Path, disk: GatedDisk) -> AsyncIterator[tuple[LocalHost, Manifest]]:
    """A host that has read the first block of a model that was read before."""
    manifest = await read_before(directory)
    async with local_host(disk, open_link=lambda: open_link(SOCKET)) as here:
        checked = await here.read(directory)
        assert checked.manifest == manifest
        disk.gate.release()
        await here.until(lambda: [one.ready for one in here.reports[-1].holdings] == [[0]])
        assert here.reports[-1].holdings[0].version == manifest.version
        yield here, manifest


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    link = await open_link(SOCKET)
    yield link
    await link.close()


async def test_the_first_block_is_there_before_the_last_is_read(directory: Path, link: Link) -> None:
    disk = GatedDisk()
    async with reading(directory, disk) as (here, manifest), Receiver(link, here, manifest) as receiver:
        await receiver.blocks(1)
        assert receiver.verified == [0]
        assert here.reads == []
        for count in range(2, len(manifest.blocks) + 1):
            disk.gate.release()
            await receiver.blocks(count)
        assert (await here.whole()).manifest == manifest
        assert receiver.verified == [0, 1, 2, 3, 4]


async def test_a_read_that_fails_ends_the_flow_and_frees_the_memory(directory: Path, link: Link) -> None:
    disk = GatedDisk()
    async with reading(directory, disk) as (here, manifest), Receiver(link, here, manifest) as receiver:
        await receiver.blocks(1)
        disk.broken = True
        disk.gate.release()
        await receiver.lost()
        assert receiver.verified == [0]
        assert (await here.whole()).error == "the disk is gone"
        await here.until(lambda: here.reports[-1].holdings == [] and here.reports[-1].flows_out == 0)
        disk.broken = False
        assert (await here.read(directory)).manifest == manifest


async def test_the_log_says_what_a_model_was_read_from(directory: Path) -> None:
    with capture_logs() as logs:
        manifest = await read_before(directory)
        async with local_host(ThreadDisk(keep=True)) as here:
            await here.read(directory)
            assert (await here.whole()).manifest == manifest
    read = [entry for entry in logs if entry["event"] == "model_read"]
    assert [entry["source"] for entry in read] == ["safetensors", "packed form"]
    assert [entry["event"] for entry in logs].count("model_packed") == 1


def test_nothing_half_is_left_of_a_host_that_ends_while_it_packs(directory: Path) -> None:
    async def main() -> None:
        async with local_host(ThreadDisk(keep=True)) as here:
            await here.read(directory)
            await here.whole()

    in_virtual_time(main())
    assert not list(directory.glob("*.part"))


def test_a_model_that_waits_for_its_turn_is_not_sent_yet(directory: Path) -> None:
    async def main() -> None:
        manifest = await read_before(directory)
        async with local_host(SlowDisk(keep=True)) as here:
            await here.read(directory, "first", dtype="float32")
            assert (await here.read(directory, "second")).manifest == manifest
            await asyncio.sleep(1)
            assert [one.version for one in here.reports[-1].holdings] == ["", manifest.version]
            assert here.reports[-1].holdings[1].ready == []
            command = Send(plan_id="plan-1", version=manifest.version, outflows=[], chunk_bytes=1 << 20, epoch=1)
            with pytest.raises(Refusal, match="neither has it nor reads"):
                await here.bus.call(SEND, command, timeout=5, id=HOST)
            await here.whole()
            await here.until(lambda: here.reports[-1].holdings[1].ready != [])
            assert await here.bus.call(SEND, command, timeout=5, id=HOST) == Ack()

    in_virtual_time(main())


def test_a_model_is_refused_where_the_machine_has_too_little_memory_left(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        disk, free_bytes = SlowDisk(), 1 << 30
        monkeypatch.setattr(disk, "free_bytes", lambda: free_bytes)
        async with local_host(disk) as here:
            checked = await here.read(directory, "first")
            await asyncio.sleep(0.5)
            free_bytes = 2 * checked.size_bytes + (1 << 20)
            await here.read(directory, "second", dtype="float32")
            with pytest.raises(Refusal, match=r"409.*'third' needs .* and this machine has 1\.0 MiB of memory left"):
                await here.read(directory, "third", dtype="float32")
            free_bytes = 0  # before its turn came another process took it
            second = await here.whole(2)
            assert (second.model, second.manifest) == ("second", None)
            assert "this machine has 0.0 MiB" in (second.error or "")

    in_virtual_time(main())
