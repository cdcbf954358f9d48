"""A hop that waits for its own upstream shows that it is alive; a silent one is given up. Blocks become ready one by
one.
"""

import asyncio

import pytest

from livescale.shared.links.contract import Buffer
from livescale.shared.messages.transfers import Node, Transfer
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import TRANSFER
from livescale.shared.transfer.flow_end import (
    AdaptiveTimeout,
    BlocksLost,
    FlowEnd,
    LostFlows,
    ModelCopy,
    ReadyBlocks,
    Timeouts,
    send_heartbeats,
)
from tests.clocks import LoopClock
from tests.shared.transfer.transfer_peer import OpenPeers, chain, described, some_blocks
from tests.shared.transfer.virtual_link import NO_LINK, here

LEAST_SECONDS = 2.0  # of silence, after which a sender is given up


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
    for peer in peers:
        peer.least = LEAST_SECONDS
    pause = PausesInTheLast()
    source.hold(blocks, pause)
    receiving = [target.receive(described(blocks), *chain(*peers), to=peers) for target in targets]
    for peer in peers:
        peer.send(*chain(*peers), to=peers)
    async with asyncio.timeout(60):
        await targets[-1].verified.wait_ready(2)
        await asyncio.sleep(1.3 * LEAST_SECONDS)
        assert [target.broken for target in targets] == [[], [], []]
        pause.goes_on.set()
        await asyncio.gather(*receiving)
    assert [target.memory for target in targets] == [blocks] * 3


async def test_a_silent_sender_is_given_up_and_no_node_further_down(open_peers: OpenPeers) -> None:
    peers, blocks = await open_peers(3), some_blocks()
    source, target, last = peers
    for one in peers:
        one.least = LEAST_SECONDS
    source.hold(blocks, PausesInTheLast())
    flows = chain(*peers)
    receiving = [one.receive(described(blocks), *flows, to=peers) for one in (target, last)]
    target.send(*flows, to=peers)
    end = FlowEnd(source.part(), 1, target.node)
    async with asyncio.timeout(60):
        peer = await end.connect(source.link)
        for chunk in (await end.hear(peer)).chunks[:10]:  # and then not a word
            await peer.send(end.tag(chunk), Buffer(source.part().view(chunk)), timeout=60)
        await target.lost.wait()
    assert "nothing arrived for" in target.broken[0][1].reason
    assert last.broken == []
    for task in receiving:
        task.cancel()
    await asyncio.wait(receiving)


def test_the_planner_hears_of_the_receivers_flow_by_its_ticket_and_why() -> None:
    async def main() -> None:
        clock = LoopClock(epoch=1_000_000.0)
        broker = LocalBroker(clock)
        sender, planner = broker.connect(), broker.connect()
        events = await planner.subscribe(TRANSFER)
        LostFlows(sender, clock).tell("scale-1", "worker-3", 7, ConnectionError("it was never reached"))
        await sender.close()
        await planner.close()
        told = [(received.holes["plan"], received.message) async for received in events]
        event = Transfer(
            plan_id="scale-1",
            node="worker-3",
            state="broken",
            at=clock.wall(),
            ticket=7,
            error="it was never reached",
        )
        assert told == [("scale-1", event)]

    virtual_time.run(main())


def test_until_a_chunk_has_shown_how_fast_they_move_nobody_is_impatient() -> None:
    pace = AdaptiveTimeout(Timeouts(first=30.0), window=4, now=5.0)
    assert (pace.limit, pace.due) == (30.0, 35.0)
    pace.restart(6.0)
    assert (pace.limit, pace.due) == (30.0, 36.0)
    pace.moved(6.01)
    assert (pace.limit, pace.due) == (1.0, 7.01)


def test_on_a_fast_link_silence_may_last_a_second() -> None:
    pace = AdaptiveTimeout(Timeouts(), window=4, now=7.0)
    for number in range(1, 100):
        pace.moved(7.0 + number * 0.01)
    assert pace.limit == 1.0


def test_on_a_slow_link_it_may_last_eight_times_what_chunks_take() -> None:
    pace = AdaptiveTimeout(Timeouts(least=1.0, factor=8.0), window=2, now=10.0)
    for now in (10.5, 11.0, 11.5):
        pace.moved(now)
    assert pace.limit == 8 * 2 * 0.5
    assert pace.due == 11.5 + 8 * 2 * 0.5


def test_a_sudden_rise_of_contention_is_followed_at_once_however_long_the_link_was_fast() -> None:
    pace = AdaptiveTimeout(Timeouts(), window=4, now=0.0)
    for number in range(1, 10_000):
        pace.moved(number * 0.01)
    pace.moved(9_999 * 0.01 + 0.9)  # ninety others joined
    assert pace.limit > 8 * 4 * 0.8


def test_what_was_slow_once_is_forgotten() -> None:
    pace = AdaptiveTimeout(Timeouts(), window=4, now=0.0)
    pace.moved(20.0)
    for number in range(1, 100):
        pace.moved(20.0 + number * 0.01)
    assert pace.limit == 1.0


def test_what_the_sender_itself_waited_for_does_not_count_as_slow() -> None:
    pace = AdaptiveTimeout(Timeouts(), window=4, now=0.0)
    for number in range(1, 100):
        pace.restart(number * 0.25)
    pace.moved(100 * 0.25)
    assert pace.limit == 8 * 4 * 0.25


async def test_a_block_that_is_there_is_not_waited_for() -> None:
    async with asyncio.timeout(1):
        await ReadyBlocks(range(3)).wait_ready(2)


async def test_a_task_that_waits_goes_on_when_its_own_block_comes() -> None:
    ready, came = ReadyBlocks(), []

    async def wait(index: int) -> None:
        await ready.wait_ready(index)
        came.append(index)

    waiting = [asyncio.create_task(wait(index)) for index in (0, 1)]
    await asyncio.sleep(0)
    ready.add(1)
    await waiting[1]
    assert came == [1]
    ready.add(0)
    await waiting[0]
    assert came == [1, 0]


async def test_blocks_that_will_never_come_are_an_error_and_those_that_came_are_not() -> None:
    ready = ReadyBlocks([0])
    waiting = asyncio.create_task(ready.wait_ready(1))
    await asyncio.sleep(0)
    ready.lose("cannot read model.safetensors")
    with pytest.raises(BlocksLost, match=r"block 1: cannot read model\.safetensors"):
        await waiting
    await ready.wait_ready(0)
