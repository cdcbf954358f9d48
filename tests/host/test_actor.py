"""The host on a local bus, under virtual time."""

import asyncio

import pytest

from livescale.shared.bus.contract import Ack, Refusal
from livescale.shared.messages.membership import Stale
from livescale.shared.messages.transfers import Abort, Send
from livescale.shared.subjects import ABORT, SEND, STALE
from tests.checkpoints import tiny_checkpoint
from tests.host.local import HOST, SlowDisk, in_virtual_time, local_host


def test_it_joins_with_its_address_and_reports_an_empty_cache() -> None:
    async def main() -> None:
        async with local_host(cache_bytes=12_345) as here:
            assert (here.joins[0].service, here.joins[0].id, here.joins[0].address) == ("host", HOST, b"nowhere")
            report = here.reports[0]
            assert (report.holdings, report.cache_bytes, report.cache_limit_bytes) == ([], 0, 12_345)

    in_virtual_time(main())


def test_reports_show_how_far_reading_is() -> None:
    async def main() -> None:
        async with local_host(SlowDisk()) as here:
            checked = await here.read(tiny_checkpoint("llama"))
            read = await here.whole()
            assert (read.path, read.form) == (str(tiny_checkpoint("llama")), ("bfloat16", 1, "plain", "auto"))
            manifest = read.manifest
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


def test_what_it_holds_is_announced_when_the_bus_is_back() -> None:
    async def main() -> None:
        async with local_host() as here:
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
        async with local_host() as here:
            with pytest.raises(Refusal, match="neither has it nor reads"):
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
        async with local_host() as here:
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
        async with local_host() as here:
            assert await here.bus.call(ABORT, Abort(plan_id="plan-9", reason="test"), timeout=1, id=HOST) == Ack()

    in_virtual_time(main())


def test_it_ends_at_once_even_while_it_reads() -> None:
    async def main() -> None:
        async with local_host(SlowDisk()) as here:
            await here.read(tiny_checkpoint("llama"))
            await asyncio.sleep(1.5)

    in_virtual_time(main())
