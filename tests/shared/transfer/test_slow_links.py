"""Flows over links that are slow, stand still or become crowded: under virtual time, shaped."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack

from livescale.shared.links.calendars import LocalCalendar
from livescale.shared.links.shaping import ShapedLink, SingleRate
from livescale.shared.messages.transfers import Flow
from livescale.shared.simulation import virtual_time
from livescale.shared.transfer.flow_end import ReadyBlocks
from tests.shared.transfer.transfer_peer import CHUNK, SIZES, TransferPeer, chain, described, flow, some_blocks
from tests.shared.transfer.virtual_link import VirtualLink, new_mail

CROWD = 60


async def peers_at(rate: float, count: int, stack: AsyncExitStack, executor: Executor) -> list[TransferPeer]:
    """Open nodes, each of which sends over a link of its own."""
    mail = new_mail()
    links = [VirtualLink(mail, f"worker-{number}".encode()) for number in range(count)]
    return [
        await stack.enter_async_context(
            TransferPeer(f"worker-{number}", ShapedLink(link, SingleRate(rate), LocalCalendar()), executor)
        )
        for number, link in enumerate(links)
    ]


def begin(
    flows: Sequence[Flow], peers: Sequence[TransferPeer], targets: Sequence[TransferPeer]
) -> list[asyncio.Task[None]]:
    receiving = [target.receive(described(some_blocks()), *flows, to=peers, first=30.0) for target in targets]
    for peer in peers:
        peer.send(*flows, to=peers)
    return receiving


def test_far_down_a_chain_nobody_gives_up_whoever_waits_for_a_slow_link_or_a_disk() -> None:
    async def main(executor: Executor) -> None:
        async with AsyncExitStack() as stack:
            peers = await peers_at(CHUNK / 1.5, 5, stack, executor)
            ready = ReadyBlocks([0, 1, 2])
            peers[0].hold(some_blocks(), ready)
            receiving = begin(chain(*peers), peers, peers[1:])
            await peers[-1].verified.wait_ready(2)
            await asyncio.sleep(8)
            ready.add(3)
            await asyncio.gather(*receiving)
            assert [peer.broken for peer in peers] == [[]] * 5
            assert [peer.memory for peer in peers[1:]] == [some_blocks()] * 4

    with ThreadPoolExecutor(1) as executor:
        virtual_time.run(main(executor), limit_seconds=400)


def test_a_flow_that_was_fast_goes_on_when_many_others_join_its_link() -> None:
    async def main(executor: Executor) -> None:
        async with AsyncExitStack() as stack:
            peers = await peers_at(CHUNK / 0.01, CROWD + 2, stack, executor)
            source, first, *others = peers
            source.hold(some_blocks())
            flows = [flow(number, source, target) for number, target in enumerate(peers[1:])]
            receiving = begin(flows[:1], peers[:2], [first])
            await asyncio.sleep(0.1)
            assert 0 < first.received_bytes < sum(SIZES)
            receiving += begin(flows[1:], [source, *others], others)
            await asyncio.gather(*receiving)
            assert [peer.broken for peer in peers] == [[]] * len(peers)

    with ThreadPoolExecutor(1) as executor:
        virtual_time.run(main(executor), limit_seconds=400)
