"""What outlives the registry, on a store that is not always there."""

import asyncio

from msgspec.structs import replace

from livescale.services.registry.saved import SavedModel, SavedState
from livescale.shared.bus.contract import ServiceAbsent
from livescale.shared.bus.write_behind import RETRY_SECONDS
from livescale.shared.messages.membership import Member
from livescale.shared.messages.message import Message
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from tests.clocks import LoopClock
from tests.control.fakes import manifest

CLOCK = LoopClock(epoch=0.0)
ENTRY = ModelEntry(spec=ModelSpec(name="org/llama-3.1", path="/m"), state="ready", size_bytes=9)
NEXT = ModelEntry(spec=ModelSpec(name="org/llama-3.1", path="/new"), state="reading", size_bytes=8)
MANIFEST = manifest("v")
MEMBER = Member(service="worker", id="w-1", pid=1, host="box", epoch=3, lease="alive", address=b"\x00\xff")


class NoStore:
    """A server without JetStream."""

    async def list(self, prefix: str, type: type[Message]) -> dict[str, Message]:
        raise ServiceAbsent("this NATS server runs without JetStream")


def test_what_was_put_is_loaded_by_the_next() -> None:
    async def main() -> None:
        bus = LocalBroker(CLOCK).connect()
        saved = SavedState(bus.kv)
        running = asyncio.create_task(saved.run())
        saved.put_model(replace(ENTRY, copies=["h"], error="no room"), MANIFEST, NEXT)
        saved.put_member(MEMBER)
        saved.put_member(Member(service="host", id="h", pid=2, host="box", epoch=4, lease="alive"))
        saved.delete_member("h")
        saved.put_model(ModelEntry(spec=ModelSpec(name="gone", path="/m"), state="failed"))
        saved.delete_model("gone")
        saved.reserve_epochs(1000)
        await asyncio.sleep(0.1)
        successor = SavedState(bus.kv)
        assert await successor.load() == ([SavedModel(ENTRY, MANIFEST, NEXT)], [MEMBER])
        assert successor.epochs == 1000
        running.cancel()

    virtual_time.run(main())


def test_a_name_with_dots_and_slashes_is_one_word_of_a_key() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        saved = SavedState(broker.connect().kv)
        running = asyncio.create_task(saved.run())
        saved.put_model(ENTRY)
        await asyncio.sleep(0.1)
        assert list(broker.values) == ["models.org=2Fllama-3=2E1"]
        running.cancel()

    virtual_time.run(main())


def test_what_could_not_be_saved_is_saved_later() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        saved = SavedState(broker.connect().kv)
        running = asyncio.create_task(saved.run())
        broker.down()
        saved.put_member(MEMBER)
        await asyncio.sleep(5.0)
        assert broker.values == {}
        broker.up()
        await asyncio.sleep(RETRY_SECONDS)
        assert list(broker.values) == ["members.w-1"]
        running.cancel()

    virtual_time.run(main())


def test_loading_waits_for_the_store() -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK)
        bus = broker.connect()
        broker.down()
        loading = asyncio.create_task(SavedState(bus.kv).load())
        await asyncio.sleep(3.5)
        assert not loading.done()
        broker.up()
        assert await loading == ([], [])
        assert CLOCK.now() == 4.0

    virtual_time.run(main())


def test_a_server_that_keeps_nothing_is_no_obstacle() -> None:
    async def main() -> None:
        assert await SavedState(NoStore()).load() == ([], [])  # type: ignore[arg-type]

    virtual_time.run(main())
