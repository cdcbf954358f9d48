"""Parameters from a host's memory over a real link."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from livescale.services.host.checkpoint import open_checkpoint
from livescale.shared.bus.contract import Refusal
from livescale.shared.links.contract import Link, checksum
from livescale.shared.links.open import open_link
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.transfers import Abort, Inflow, Node, Outflow, Send
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.subjects import ABORT, SEND
from livescale.shared.transfer.flow_end import ModelCopy
from livescale.shared.transfer.receiver import BlockReceiver, Events
from tests.checkpoints import tiny_checkpoint
from tests.host.local import HOST, LocalHost, local_host

CHUNK_BYTES = 1 << 18


@pytest.fixture
async def target() -> AsyncIterator[Link]:
    link = await open_link(LinkSettings(transport="socket"))
    yield link
    await link.close()


async def held(here: LocalHost) -> Manifest:
    await here.read(tiny_checkpoint("llama"))
    manifest = (await here.whole()).manifest
    assert manifest is not None
    return manifest


async def send(here: LocalHost, manifest: Manifest, target: Link) -> None:
    child = Outflow(ticket=7, downstream=Node(id="worker-0", place="worker", address=target.address))
    command = Send(
        plan_id=f"plan-{manifest.shard}",
        version=manifest.version,
        outflows=[child],
        chunk_bytes=CHUNK_BYTES,
        epoch=1,
        shard=manifest.shard,
    )
    await here.bus.call(SEND, command, timeout=5, id=HOST)


def socket_link(rate: float = 0.0) -> LinkSettings:
    return LinkSettings(transport="socket", link_rate=rate)


async def receive_shard(here: LocalHost, manifest: Manifest, target: Link) -> list[memoryview]:
    """Receive the blocks of this manifest, and verify them."""
    memory = [memoryview(bytearray(block.size_bytes)) for block in manifest.blocks]
    upstream = Node(id=HOST, place="host", address=here.joins[0].address or b"")
    part = ModelCopy("worker-0", CHUNK_BYTES, memory)
    verified: list[int] = []
    events = Events(first_byte=lambda: None, block=verified.append, broken=lambda ticket, failure: None)
    with ThreadPoolExecutor(1) as executor:
        async with asyncio.TaskGroup() as tasks:
            incoming = BlockReceiver(target, part, manifest.blocks, executor, events, tasks)
            incoming.follow([Inflow(ticket=7, upstream=upstream)], b"")
            _, _ = await asyncio.gather(incoming.run(), send(here, manifest, target))
    assert verified == [0, 1, 2, 3, 4]
    return memory


async def receive(here: LocalHost, manifest: Manifest, target: Link) -> None:
    """Receive all blocks, and compare them with the checkpoint."""
    memory = await receive_shard(here, manifest, target)
    checkpoint = open_checkpoint(tiny_checkpoint("llama"), "bfloat16")
    for index, block in enumerate(memory):
        expected = bytearray(block.nbytes)
        checkpoint.read_block(index, memoryview(expected))
        assert block == expected


async def test_a_worker_receives_exactly_what_the_checkpoint_holds(target: Link) -> None:
    async with local_host(open_link=lambda: open_link(socket_link())) as here:
        await receive(here, await held(here), target)


async def test_a_send_is_counted_until_its_plan_is_aborted(target: Link) -> None:
    async with local_host(open_link=lambda: open_link(socket_link(rate=1_000.0))) as here:
        manifest = await held(here)
        await send(here, manifest, target)
        await here.until(lambda: here.reports[-1].flows_out == 1)
        await here.bus.call(ABORT, Abort(plan_id="plan-0", reason="test"), timeout=5, id=HOST)
        await here.until(lambda: here.reports[-1].flows_out == 0)


async def test_each_rank_is_sent_its_shard_of_a_model_that_is_cut(target: Link) -> None:
    async with local_host(open_link=lambda: open_link(socket_link())) as here:
        await here.read(tiny_checkpoint("qwen2"), tensor_parallel_size=2)
        whole = (await here.whole()).manifest
        assert whole is not None
        assert here.reports[-1].holdings[0].total == len(whole.blocks) == 10
        for shard in (1, 0):
            memory = await receive_shard(here, whole.of_shard(shard), target)
            assert [checksum(block) for block in memory] == [block.checksum for block in whole.blocks[5 * shard :][:5]]
        with pytest.raises(Refusal, match=r"400: shard: version .* has 2, there is no 2"):
            await send(here, replace(whole, shard=2), target)
