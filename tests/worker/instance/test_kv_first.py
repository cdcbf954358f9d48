"""Parameters wait for KV that leaves the same worker, and not for ever."""

import asyncio
from collections.abc import Coroutine

from livescale.services.worker.instance.kv_first import KV_BYTES, MOST_SECONDS, STUCK_SECONDS, KvFirst
from livescale.shared.simulation import virtual_time


def in_virtual_time(main: Coroutine[None, None, None]) -> None:
    virtual_time.run(main, limit_seconds=60)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_chunk_waits_until_no_kv_is_sent() -> None:
    async def main() -> None:
        first, began = KvFirst(), now()
        await first.wait(1000)
        assert now() == began
        first.begin()
        first.begin()
        waiting = asyncio.create_task(first.wait(1000))
        await asyncio.sleep(0.02)
        first.end(10)
        await asyncio.sleep(0.02)
        assert not waiting.done()
        first.end(10)
        await waiting
        assert now() - began < 0.05
        first.begin()  # what left before counts no more
        assert await went(first, 1000) == STUCK_SECONDS

    in_virtual_time(main())


async def went(first: KvFirst, size_bytes: int) -> float:
    began = now()
    await first.wait(size_bytes)
    return round(now() - began, 6)


def test_where_kv_never_ends_parameters_have_their_part_of_the_bytes() -> None:
    async def main() -> None:
        first, sent = KvFirst(), [0]

        async def parameters() -> None:
            while True:
                await first.wait(1000)
                sent[0] += 1000
                await asyncio.sleep(0.001)

        task = asyncio.create_task(parameters())
        first.begin()
        for _ in range(300):
            first.begin()
            await asyncio.sleep(0.01)
            first.end(1000)
        first.end()
        task.cancel()
        assert 300_000 / KV_BYTES - 2000 <= sent[0] <= 300_000 / KV_BYTES + 2000

    in_virtual_time(main())


def test_kv_that_trickles_to_a_slow_receiver_holds_no_chunk_up_for_long() -> None:
    async def main() -> None:
        first = KvFirst()

        async def trickle() -> None:
            while True:
                first.begin()
                await asyncio.sleep(STUCK_SECONDS / 2)
                first.end(10)

        first.begin()
        task = asyncio.create_task(trickle())
        assert await went(first, 1_000_000) == MOST_SECONDS
        task.cancel()

    in_virtual_time(main())
