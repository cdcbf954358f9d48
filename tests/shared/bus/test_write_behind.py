"""State behind a store that fails, comes back, or comes back empty."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from structlog.testing import capture_logs

from livescale.shared.bus.contract import BusError, TooLarge
from livescale.shared.bus.write_behind import RETRY_SECONDS, WriteBehind
from livescale.shared.messages.membership import Joined
from livescale.shared.messages.message import Message
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from tests.clocks import LoopClock


class FullStore:
    """A store on a full disk."""

    def __init__(self) -> None:
        self.tries = 0
        self.full = True
        self.values: dict[str, Message] = {}

    async def put(self, key: str, value: Message) -> None:
        self.tries += 1
        if self.full:
            raise BusError("no space left on device")
        self.values[key] = value

    async def delete(self, key: str) -> None:
        self.values.pop(key, None)


@asynccontextmanager
async def written(writing: WriteBehind) -> AsyncIterator[None]:
    running = asyncio.create_task(writing.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_a_full_disk_is_tried_again_and_again_and_told_ever_more_seldom() -> None:
    async def main() -> None:
        store = FullStore()
        writing = WriteBehind(store, "state")  # type: ignore[arg-type]
        with capture_logs() as logs:
            async with written(writing):
                writing.set("a", Joined(epoch=1))
                await asyncio.sleep(999.5 * RETRY_SECONDS)
                assert store.tries == 1_000
                store.full = False
                await asyncio.sleep(RETRY_SECONDS)
        assert store.values == {"a": Joined(epoch=1)}
        assert [line["failures"] for line in logs if line["event"] == "not_saved"] == [2**i for i in range(10)]
        assert [line["failures"] for line in logs if line["event"] == "saved_after_all"] == [1_000]

    virtual_time.run(main(), limit_seconds=2_000)


def test_a_value_too_large_for_the_bus_does_not_hold_others_up() -> None:
    class SmallStore(FullStore):
        async def put(self, key: str, value: Message) -> None:
            if key == "large":
                raise TooLarge("large: 2 bytes with headers; the bus takes 1")
            await super().put(key, value)

    async def main() -> None:
        store = SmallStore()
        store.full = False
        writing = WriteBehind(store, "state")  # type: ignore[arg-type]
        with capture_logs() as logs:
            async with written(writing):
                writing.set("large", Joined(epoch=1))
                writing.set("small", Joined(epoch=2))
                await asyncio.sleep(10 * RETRY_SECONDS)
        assert store.values == {"small": Joined(epoch=2)}
        assert [(line["event"], line["key"]) for line in logs] == [("too_large_to_save", "large")]

    virtual_time.run(main())


def test_a_store_that_came_back_empty_gets_all_of_it_again_but_what_was_deleted() -> None:
    async def main() -> None:
        broker = LocalBroker(LoopClock(epoch=0.0))
        kv = broker.connect().kv
        await kv.put("left.old", Joined(epoch=1))
        writing = WriteBehind(kv, "state")
        assert await writing.load("left", Joined) == {"left.old": Joined(epoch=1)}
        async with written(writing):
            writing.set("a", Joined(epoch=2))
            writing.set("b", Joined(epoch=3))
            await asyncio.sleep(0.1)
            writing.set("b", None)
            broker.values.clear()
            writing.save_again()
            await asyncio.sleep(0.1)
        assert await kv.list("", Joined) == {"left.old": Joined(epoch=1), "a": Joined(epoch=2)}

    virtual_time.run(main())
