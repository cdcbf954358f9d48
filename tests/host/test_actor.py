"""The host on a local bus, under virtual time."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from livescale.services.host.checkpoint import open_checkpoint
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.copies import CheckModel
from livescale.shared.messages.membership import Stale
from livescale.shared.messages.message import Ack
from livescale.shared.messages.parameters import ModelSpec
from livescale.shared.messages.transfers import Abort, Send
from livescale.shared.subjects import ABORT, CHECK_MODEL, SEND, STALE
from tests.checkpoints import copy_checkpoint, tiny_checkpoint
from tests.host.site import HOST, Site, SlowDisk, in_virtual_time, site


async def refused(here: Site, path: Path, **spec: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await here.read(path, **spec)
    return caught.value


def spoil(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = torch.inf
    save_file(tensors, directory / "model.safetensors")


def test_it_joins_with_its_address_and_reports_an_empty_cache() -> None:
    async def main() -> None:
        async with site(cache_bytes=12_345) as here:
            assert (here.joins[0].service, here.joins[0].id, here.joins[0].address) == ("host", HOST, b"nowhere")
            report = here.reports[0]
            assert (report.holdings, report.cache_bytes, report.cache_limit_bytes) == ([], 0, 12_345)

    in_virtual_time(main())


def test_a_checkpoint_is_checked_at_once_and_then_read() -> None:
    async def main() -> None:
        disk = SlowDisk()
        async with site(disk) as here:
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


def test_reports_show_how_far_reading_is() -> None:
    async def main() -> None:
        async with site(SlowDisk()) as here:
            checked = await here.read(tiny_checkpoint("llama"))
            manifest = (await here.whole()).manifest
            await asyncio.sleep(1)
            assert manifest is not None
            seen = [report.holdings[0] for report in here.reports if report.holdings]
            assert [count for count in range(6) if any(holding.ready == list(range(count)) for holding in seen)] == [
                *range(6)
            ]
            assert {holding.total for holding in seen} == {5}
            assert {holding.version for holding in seen if len(holding.ready) < 5} == {""}
            assert seen[-1].version == manifest.version
            assert here.reports[-1].cache_bytes == checked.size_bytes

    in_virtual_time(main())


def test_a_bad_checkpoint_is_refused_at_once_with_its_file(tmp_path: Path) -> None:
    async def main() -> None:
        directory = copy_checkpoint("qwen2", tmp_path)
        (directory / "model.safetensors").unlink()
        async with site() as here:
            error = await refused(here, directory)
            assert error.code == 422
            assert str(directory) in error.message
            assert (await refused(here, tmp_path / "nothing")).code == 422
            await asyncio.sleep(1)
            assert here.reports[-1].holdings == []
            assert here.reads == []

    in_virtual_time(main())


def test_a_model_that_does_not_fit_is_refused_with_the_setting_to_change() -> None:
    async def main() -> None:
        async with site(cache_bytes=3 << 20) as here:
            await here.read(tiny_checkpoint("llama"))
            error = await refused(here, tiny_checkpoint("qwen2"), model="second")
            assert error.code == 409
            assert "--cache-bytes" in error.message
            assert (await here.whole()).manifest is not None

    in_virtual_time(main())


def test_a_request_length_beyond_the_checkpoint_is_refused() -> None:
    async def main() -> None:
        async with site() as here:
            assert "max_model_len 5000" in (await refused(here, tiny_checkpoint("llama"), max_model_len=5_000)).message
            assert (await here.read(tiny_checkpoint("llama"), max_model_len=500)).max_model_len == 500

    in_virtual_time(main())


def test_a_model_that_turns_out_bad_is_told_and_its_memory_given_back(tmp_path: Path) -> None:
    async def main() -> None:
        directory = copy_checkpoint("qwen2", tmp_path)
        spoil(directory)
        async with site() as here:
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


def test_a_model_that_is_there_is_announced_again_without_reading(tmp_path: Path) -> None:
    async def main() -> None:
        disk, directory = SlowDisk(), copy_checkpoint("qwen2", tmp_path)
        async with site(disk) as here:
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
        async with site(disk) as here:
            both = await asyncio.gather(here.read(tiny_checkpoint("llama")), here.read(tiny_checkpoint("llama")))
            assert both[0] == both[1] == await here.read(tiny_checkpoint("llama"))
            await here.whole()
            await asyncio.sleep(10)
            assert len(here.reads) == 1
            assert disk.blocks_read == 5

    in_virtual_time(main())


def test_models_are_read_one_after_the_other() -> None:
    async def main() -> None:
        async with site(SlowDisk()) as here:
            await here.read(tiny_checkpoint("llama"), model="a")
            await here.read(tiny_checkpoint("qwen2"), model="b")
            await here.whole(2)
            assert [read.model for read in here.reads] == ["a", "b"]
            halves = [report for report in here.reports if len(report.holdings) == 2 and report.holdings[1].ready]
            assert all(len(report.holdings[0].ready) == 5 for report in halves)

    in_virtual_time(main())


def test_another_version_is_read_once_the_first_is_whole_and_both_are_there_until_one_is_released() -> None:
    async def main() -> None:
        async with site(SlowDisk()) as here:
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
        async with site(disk) as here:
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


def test_a_checkpoint_is_checked_without_being_read() -> None:
    async def main() -> None:
        async with site() as here:
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


def test_what_is_being_read_or_waits_for_its_turn_can_be_released() -> None:
    async def main() -> None:
        disk = SlowDisk()
        async with site(disk) as here:
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


def test_what_it_holds_is_announced_when_the_bus_is_back() -> None:
    async def main() -> None:
        async with site() as here:
            await here.read(tiny_checkpoint("llama"))
            await here.whole()
            here.broker.down()
            here.broker.up()
            assert await here.whole(2) == here.reads[0]

    in_virtual_time(main())


def send(version: str, epoch: int) -> Send:
    return Send(plan_id="plan-1", version=version, outflows=[], chunk_bytes=1 << 20, epoch=epoch)


def test_only_a_whole_model_is_sent_and_only_in_the_present_epoch() -> None:
    async def main() -> None:
        async with site() as here:
            with pytest.raises(Refusal, match="neither holds nor reads"):
                await here.bus.call(SEND, send("unknown", 1), timeout=1, id=HOST)
            await here.read(tiny_checkpoint("llama"))
            manifest = (await here.whole()).manifest
            assert manifest is not None
            with pytest.raises(Refusal, match="epoch 7 is stale"):
                await here.bus.call(SEND, send(manifest.version, 7), timeout=1, id=HOST)
            assert await here.bus.call(SEND, send(manifest.version, 1), timeout=1, id=HOST) == Ack()

    in_virtual_time(main())


def test_a_host_that_was_declared_dead_keeps_its_cache_and_joins_again() -> None:
    async def main() -> None:
        async with site() as here:
            await here.read(tiny_checkpoint("llama"))
            await here.whole()
            here.bus.publish(STALE, Stale(id=HOST, epoch=1), id=HOST)
            await asyncio.sleep(1)
            assert len(here.joins) == 2
            assert here.reports[-1].epoch == 2
            assert len(here.reports[-1].holdings[0].ready) == 5

    in_virtual_time(main())


def test_the_end_of_an_unknown_plan_is_no_error() -> None:
    async def main() -> None:
        async with site() as here:
            assert await here.bus.call(ABORT, Abort(plan_id="plan-9", reason="test"), timeout=1, id=HOST) == Ack()

    in_virtual_time(main())


def test_it_ends_at_once_even_while_it_reads() -> None:
    async def main() -> None:
        async with site(SlowDisk()) as here:
            await here.read(tiny_checkpoint("llama"))
            await asyncio.sleep(1.5)

    in_virtual_time(main())
