"""The records that outlive the planner."""

import asyncio

from livescale.services.planner.outbox import KEPT, SavedRecords
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from tests.clocks import LoopClock
from tests.planner.samples import decision


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
