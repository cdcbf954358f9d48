"""A hop that waits for its own upstream shows that it is alive; a silent one is given up."""

import asyncio

from livescale.shared.links.contract import Buffer
from livescale.shared.messages.transfers import Node
from livescale.shared.simulation import virtual_time
from livescale.shared.transfer.flow_end import FlowEnd, ModelCopy, send_heartbeats
from livescale.shared.transfer.timeouts import Timeouts
from livescale.shared.transfer.waiting import ReadyBlocks
from tests.shared.transfer.transfer_peer import OpenPeers, chain, described, some_blocks
from tests.shared.transfer.virtual_link import NO_LINK, here


class Listener:
    """A peer that takes all messages, and notes what came when."""

    path = NO_LINK

    def __init__(self) -> None:
        self.heard: list[tuple[float, bytes]] = []

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        self.heard.append((asyncio.get_running_loop().time(), bytes(here(buffer))))

    receive = send

    async def close(self) -> None: ...


def test_signs_come_at_once_then_regularly_and_the_last_when_everything_was_sent() -> None:
    async def main() -> None:
        part = ModelCopy("w", 1024, [memoryview(bytearray(1024))], Timeouts(least=4.0))
        end, peer, done = FlowEnd(part, 1, Node(id="v", place="worker", address=b"")), Listener(), asyncio.Event()
        began = asyncio.get_running_loop().time()
        asyncio.get_running_loop().call_later(2.5, done.set)
        await send_heartbeats(end, peer, done)
        assert [(at - began, word) for at, word in peer.heard] == [(0, b"\0"), (1, b"\0"), (2, b"\0"), (2.5, b"\1")]

    virtual_time.run(main(), limit_seconds=10)


class PausesInTheLast(ReadyBlocks):
    """A sender that has everything except the second half of the last block."""

    def __init__(self) -> None:
        super().__init__(range(3))
        self.goes_on = asyncio.Event()
        self._asked = 0

    async def wait_ready(self, index: int) -> None:
        if index == 3:
            self._asked += 1
            if self._asked > 8:
                await self.goes_on.wait()


async def test_a_chain_whose_source_pauses_within_a_block_breaks_nowhere(open_peers: OpenPeers) -> None:
    peers, blocks = await open_peers(4), some_blocks()
    source, *targets = peers
    pause = PausesInTheLast()
    source.hold(blocks, pause)
    receiving = [target.receive(described(blocks), *chain(*peers), to=peers) for target in targets]
    for peer in peers:
        peer.send(*chain(*peers), to=peers)
    async with asyncio.timeout(20):
        await targets[-1].verified.wait_ready(2)
        await asyncio.sleep(1.3 * Timeouts().least)
        assert [target.broken for target in targets] == [[], [], []]
        pause.goes_on.set()
        await asyncio.gather(*receiving)
    assert [target.memory for target in targets] == [blocks] * 3


async def test_a_silent_sender_is_given_up_and_no_node_further_down(open_peers: OpenPeers) -> None:
    peers, blocks = await open_peers(3), some_blocks()
    source, target, last = peers
    source.hold(blocks, PausesInTheLast())
    flows = chain(*peers)
    receiving = [one.receive(described(blocks), *flows, to=peers) for one in (target, last)]
    target.send(*flows, to=peers)
    end = FlowEnd(source.part(), 1, target.node)
    async with asyncio.timeout(20):
        peer = await end.connect(source.link)
        for chunk in (await end.hear(peer)).chunks[:10]:  # and then not a word
            await peer.send(end.tag(chunk), source.part().buffer(chunk), timeout=5)
        await target.lost.wait()
    assert "nothing arrived for" in target.broken[0][1].reason
    assert last.broken == []
    for task in receiving:
        task.cancel()
    await asyncio.wait(receiving)
