"""Flows out of a worker that computes: under virtual time, chunks cost its loop what they would cost."""

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack

import pytest

from livescale.services.worker.engine.send_pauses import SendPauses
from livescale.services.worker.engine.send_share import SAVED_SECONDS, SHARE
from livescale.shared.simulation import virtual_time
from livescale.shared.transfer.chunks import Chunk, cut
from tests.shared.transfer.transfer_peer import CHUNK, SIZES, TransferPeer, chain, described, some_blocks
from tests.shared.transfer.virtual_link import VirtualLink, new_mail

CHUNK_SECONDS = 0.001  # of the loop
CHUNKS = len(cut(SIZES, CHUNK))
STEP_SECONDS = 0.02


class Source(TransferPeer):
    """Sends chunks when its pauses let it, each of which takes the loop's time."""

    loop_seconds = 0.0

    def compute(self) -> None:
        self.pauses = SendPauses(lambda: (asyncio.get_running_loop().time(), self.loop_seconds))

    async def wait_here(self, chunk: Chunk) -> None:
        await self.pauses.wait()
        self.loop_seconds += CHUNK_SECONDS


async def steps(source: Source) -> None:
    """One after the other; they lose what the loop takes."""
    while True:
        before = source.loop_seconds
        source.pauses.step_begins()
        await asyncio.sleep(STEP_SECONDS)
        source.pauses.step_ends(source.loop_seconds - before)


@pytest.mark.parametrize("computes", [True, False])
def test_a_chain_is_fed_in_the_time_that_steps_leave(computes: bool) -> None:
    async def main(executor: Executor) -> None:
        async with AsyncExitStack() as stack:
            mail = new_mail()
            source = await stack.enter_async_context(Source("source", VirtualLink(mail, b"source"), executor))
            target = await stack.enter_async_context(TransferPeer("target", VirtualLink(mail, b"target"), executor))
            source.compute()
            source.hold(some_blocks())
            computing = asyncio.create_task(steps(source)) if computes else None
            await asyncio.sleep(0)
            flows = chain(source, target)
            receiving = target.receive(described(some_blocks()), *flows, to=[source, target])
            source.send(*flows, to=[source, target])
            await receiving
            took = asyncio.get_running_loop().time()
            if computing is not None:
                computing.cancel()
                assert source.loop_seconds <= SHARE * took + SAVED_SECONDS + 2 * CHUNK_SECONDS
            else:
                assert took < CHUNKS * CHUNK_SECONDS
            assert source.loop_seconds == pytest.approx(CHUNKS * CHUNK_SECONDS)
            assert target.memory == some_blocks()

    with ThreadPoolExecutor(1) as executor:
        virtual_time.run(main(executor), limit_seconds=60)
