"""What a host is asked of checkpoints on its disk."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from livescale.services.host.checkpoint import open_checkpoint
from livescale.shared.bus.contract import Ack, Refusal
from livescale.shared.links.contract import Link
from livescale.shared.links.open import open_link
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import CheckModel
from livescale.shared.messages.transfers import FromDisk, Send
from livescale.shared.subjects import CHECK_MODEL, SEND
from tests.checkpoints import copy_checkpoint, tiny_checkpoint
from tests.host.local import HOST, LocalHost, SlowDisk, in_virtual_time, local_host
from tests.host.receiver import Receiver
from tests.host.test_known import SOCKET, GatedDisk


async def refused(here: LocalHost, path: Path, **spec: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await here.read(path, **spec)
    return caught.value


def test_a_checkpoint_is_checked_at_once_and_then_read() -> None:
    async def main() -> None:
        disk = SlowDisk()
        async with local_host(disk) as here:
            checked = await here.read(tiny_checkpoint("llama"))
            assert disk.blocks_read == 0
            assert (checked.blocks, checked.max_model_len) == (5, 4_096)
            read = await here.whole()
            assert read.error is None
            assert read.manifest is not None
            assert read.manifest.size_bytes == checked.size_bytes
            checkpoint = open_checkpoint(tiny_checkpoint("llama"), "bfloat16")
            blocks = [bytearray(layout.size_bytes) for layout in checkpoint.layouts]
            checksums = [checkpoint.read_block(index, memoryview(block)) for index, block in enumerate(blocks)]
            assert read.manifest == checkpoint.manifest(checksums)

    in_virtual_time(main())


def test_a_bad_checkpoint_is_refused_at_once_with_its_file(tmp_path: Path) -> None:
    async def main() -> None:
        directory = copy_checkpoint("qwen2", tmp_path)
        (directory / "model.safetensors").unlink()
        async with local_host() as here:
            error = await refused(here, directory)
            assert error.code == 422
            assert str(directory) in error.message
            assert (await refused(here, tmp_path / "nothing")).code == 422
            await asyncio.sleep(1)
            assert here.reports[-1].holdings == []
            assert here.reads == []

    in_virtual_time(main())


def test_a_request_length_beyond_the_checkpoint_is_refused() -> None:
    async def main() -> None:
        async with local_host() as here:
            assert "max_model_len 5000" in (await refused(here, tiny_checkpoint("llama"), max_model_len=5_000)).message
            assert (await here.read(tiny_checkpoint("llama"), max_model_len=500)).max_model_len == 500

    in_virtual_time(main())


def test_a_model_that_is_there_is_announced_again_without_reading(tmp_path: Path) -> None:
    async def main() -> None:
        disk, directory = SlowDisk(), copy_checkpoint("qwen2", tmp_path)
        async with local_host(disk) as here:
            first = await here.read(directory)
            manifest = (await here.whole()).manifest
            assert await here.read(directory) == replace(first, manifest=manifest)
            (directory / "model.safetensors").unlink()
            assert await here.read(directory) == replace(first, manifest=manifest)
            assert await here.whole(2) == await here.whole(3) == here.reads[0]
            assert disk.blocks_read == first.blocks

    in_virtual_time(main())


def test_a_model_that_is_asked_for_twice_is_read_once() -> None:
    async def main() -> None:
        disk = SlowDisk()
        async with local_host(disk) as here:
            both = await asyncio.gather(here.read(tiny_checkpoint("llama")), here.read(tiny_checkpoint("llama")))
            assert both[0] == both[1] == await here.read(tiny_checkpoint("llama"))
            await here.whole()
            await asyncio.sleep(10)
            assert len(here.reads) == 1
            assert disk.blocks_read == 5

    in_virtual_time(main())


def test_a_checkpoint_is_checked_without_being_read() -> None:
    async def main() -> None:
        async with local_host() as here:
            spec = ModelSpec(name="m", path=str(tiny_checkpoint("llama")))
            checked = await here.bus.call(CHECK_MODEL, CheckModel(spec=spec), timeout=10, id=HOST)
            assert (checked.blocks, checked.manifest) == (5, None)
            with pytest.raises(Refusal, match="nowhere"):
                await here.bus.call(CHECK_MODEL, CheckModel(spec=replace(spec, path="/nowhere")), timeout=10, id=HOST)
            await asyncio.sleep(1)
            assert here.reports[-1].holdings == []
            await here.read(tiny_checkpoint("llama"))
            manifest = (await here.whole()).manifest
            checked = await here.bus.call(CHECK_MODEL, CheckModel(spec=spec), timeout=10, id=HOST)
            assert checked.manifest == manifest

    in_virtual_time(main())


def described(directory: Path) -> Manifest:
    """Return what another host has found of the checkpoint."""
    checkpoint = open_checkpoint(directory, "bfloat16")
    memory = [memoryview(bytearray(layout.size_bytes)) for layout in checkpoint.layouts]
    return checkpoint.manifest([checkpoint.read_block(index, view) for index, view in enumerate(memory)])


def wanted(directory: Path, manifest: Manifest, name: str = "m") -> FromDisk:
    return FromDisk(spec=ModelSpec(name=name, path=str(directory)), manifest=manifest)


async def send(here: LocalHost, from_disk: FromDisk, plan: str = "plan-1") -> Ack:
    version = from_disk.manifest.version
    command = Send(plan_id=plan, version=version, outflows=[], chunk_bytes=1 << 20, epoch=1, from_disk=from_disk)
    return await here.bus.call(SEND, command, timeout=5, id=HOST)


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    link = await open_link(SOCKET)
    yield link
    await link.close()


async def test_it_is_sent_while_it_is_read_for_the_first_time(tmp_path: Path, link: Link) -> None:
    directory, disk = copy_checkpoint("llama", tmp_path), GatedDisk()
    manifest = described(directory)
    async with local_host(disk, open_link=lambda: open_link(SOCKET)) as here:
        async with Receiver(link, here, manifest, wanted(directory, manifest)) as receiver:
            for count in range(1, len(manifest.blocks) + 1):
                assert here.reads == []
                disk.gate.release()
                await receiver.blocks(count)
            assert receiver.verified == [0, 1, 2, 3, 4]
            assert (await here.whole()).manifest == manifest
        async with Receiver(link, here, manifest, wanted(directory, manifest)) as receiver:
            await receiver.blocks(len(manifest.blocks))
        assert len(here.reads) == 1


async def test_files_that_turn_out_to_hold_something_else_end_the_flow(tmp_path: Path, link: Link) -> None:
    directory, disk = copy_checkpoint("llama", tmp_path), GatedDisk()
    manifest = described(directory)
    last = replace(manifest.blocks[-1], checksum=1)
    checkpoint = open_checkpoint(directory, "bfloat16")
    other = checkpoint.manifest([block.checksum for block in [*manifest.blocks[:-1], last]])
    async with local_host(disk, open_link=lambda: open_link(SOCKET)) as here:
        async with Receiver(link, here, other, wanted(directory, other)) as receiver:
            for count in range(1, len(manifest.blocks)):
                disk.gate.release()
                await receiver.blocks(count)
            disk.gate.release()
            await receiver.lost()
            assert receiver.verified == [0, 1, 2, 3]
        assert f"block 4 is not that of version {other.version}" in str((await here.whole()).error)
        await here.until(lambda: here.reports[-1].cache_bytes == 0)


def test_a_version_that_cannot_be_there_is_refused() -> None:
    async def main() -> None:
        async with local_host() as here:
            manifest = described(tiny_checkpoint("llama"))
            with pytest.raises(Refusal, match=f"does not hold version {manifest.version}"):
                await send(here, wanted(tiny_checkpoint("qwen2"), manifest))
            with pytest.raises(Refusal, match="/nowhere"):
                await send(here, wanted(Path("/nowhere"), manifest))
            forged = replace(manifest, version="0" * 32)
            with pytest.raises(Refusal, match="does not hold version 0000"):
                await send(here, wanted(tiny_checkpoint("llama"), forged))
            await asyncio.sleep(1)
            assert here.reports[-1].holdings == []

    in_virtual_time(main())


def test_the_first_of_several_sends_at_once_has_the_model_read() -> None:
    async def main() -> None:
        disk = SlowDisk()
        async with local_host(disk) as here:
            from_disk = wanted(tiny_checkpoint("llama"), described(tiny_checkpoint("llama")))
            assert await asyncio.gather(*(send(here, from_disk, plan) for plan in ("a", "b", "c"))) == [Ack()] * 3
            await here.whole()
            assert disk.blocks_read == 5

    in_virtual_time(main())


def test_a_send_that_has_to_wait_for_its_turn_is_refused_in_time() -> None:
    async def main() -> None:
        async with local_host(SlowDisk()) as here:
            await here.read(tiny_checkpoint("qwen2"), "first")
            from_disk = wanted(tiny_checkpoint("llama"), described(tiny_checkpoint("llama")))
            with pytest.raises(Refusal, match="waits until other models are read"):
                await send(here, from_disk)
            await here.whole()
            assert await send(here, from_disk) == Ack()

    in_virtual_time(main())
