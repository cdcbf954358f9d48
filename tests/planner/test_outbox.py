"""The records that outlive the planner."""

import asyncio

from structlog.testing import capture_logs

from livescale.services.planner.fleet import ServingInstance
from livescale.services.planner.outbox import KEPT, RECORD_SECONDS, RecordOutbox, SavedRecords
from livescale.services.planner.scale_in import ScaleIn
from livescale.shared.bus.contract import TooLarge
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import PLAN
from tests.clocks import LoopClock
from tests.planner.samples import decision, happened


def record(index: int) -> ScaleRecord:
    return ScaleRecord(id=f"scale-{index}", decision=decision("in"), state="done")


def test_only_the_newest_records_are_kept_and_a_lost_store_gets_them_again() -> None:
    async def main() -> None:
        broker = LocalBroker(LoopClock(epoch=0.0))
        saved = SavedRecords(broker.connect().kv)
        running = asyncio.create_task(saved.run())
        for index in range(KEPT + 3):
            saved.put(record(index))
        await asyncio.sleep(0.1)
        newest = {f"scales.scale-{index}" for index in range(3, KEPT + 3)}
        assert set(broker.values) == newest
        broker.values.clear()
        saved.save_again()
        await asyncio.sleep(0.1)
        assert set(broker.values) == newest
        running.cancel()

    virtual_time.run(main())


def test_a_scale_of_many_changes_is_told_at_once_then_in_few_records_and_at_its_end() -> None:
    async def main() -> None:
        clock = LoopClock(epoch=0.0)
        broker = LocalBroker(clock)
        bus = broker.connect()
        saved = SavedRecords(bus.kv)
        outbox = RecordOutbox(bus, clock, saved)
        told = await broker.connect().subscribe(PLAN)
        running = asyncio.create_task(outbox.run())
        drained = [ServingInstance(f"i-w-{index}", (f"w-{index}",), 0) for index in range(100)]
        scale = ScaleIn("scale-1", decision("in"), drained, {f"w-{index}": 1 for index in range(100)}, 60.0)
        for command in scale.start(0.0):
            scale.acknowledged(command, 0.0)
        outbox.put(scale, at_once=False)
        for index in range(100):
            await asyncio.sleep(RECORD_SECONDS / 10)
            scale.on_instance(happened("spare", f"w-{index}"), clock.now())
            outbox.put(scale, at_once=scale.take_end())
        await asyncio.sleep(1.0)
        running.cancel()
        await told.close()
        records = [received.message async for received in told]
        assert 8 < len(records) < 14
        assert [record.state for record in records] == ["draining"] * (len(records) - 1) + ["done"]
        assert records[-1] == scale.record()

    virtual_time.run(main())


def test_a_record_too_large_for_the_bus_does_not_end_the_planner() -> None:
    class SmallBus:
        def publish(self, topic: object, message: object, **_: object) -> None:
            raise TooLarge("plan: 2 bytes with headers; the bus takes 1")

    async def main() -> None:
        clock = LoopClock(epoch=0.0)
        saved = SavedRecords(LocalBroker(clock).connect().kv)
        outbox = RecordOutbox(SmallBus(), clock, saved)  # type: ignore[arg-type]
        scale = ScaleIn("scale-1", decision("in"), [ServingInstance("i-w", ("w",), 0)], {"w": 1}, 60.0)
        with capture_logs() as logs:
            outbox.put(scale, at_once=True)
        assert [(line["event"], line["scale"]) for line in logs] == [("record_not_published", "scale-1")]

    virtual_time.run(main())
