"""What the bench of live scaling does between its runs."""

import asyncio

import pytest

from livescale.load.bench.live.system import only_busy
from livescale.load.bench.watch import Watch
from livescale.shared.messages.membership import EngineLoad, WorkerReport


def worker_report(id: str, running: int) -> WorkerReport:
    """The report of a worker that runs so many requests."""
    load = EngineLoad(
        waiting_requests=0,
        waiting_tokens=0,
        running_requests=running,
        max_requests=8,
        kv_blocks_used=0,
        kv_blocks_total=8,
        kv_block_tokens=16,
    )
    return WorkerReport(id=id, epoch=1, state="serving", load=load)


class TwoWorkers:
    """Two workers that report what they run. A router gives a request to the idle one that comes first by name."""

    def __init__(self) -> None:
        self.watch = Watch()
        self.running = {"worker-0": 0, "worker-1": 0}
        self.cancelled: list[str] = []

    async def ask(self) -> None:
        worker = min(self.running, key=lambda id: (self.running[id], id))
        self._count(worker, 1)
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.append(worker)
            self._count(worker, -1)

    def _count(self, worker: str, more: int) -> None:
        self.running[worker] += more
        for id, count in self.running.items():
            self.watch.hear(worker_report(id, count))


@pytest.mark.parametrize("worker", ["worker-0", "worker-1"])
async def test_one_of_two_has_something_to_do_wherever_the_router_sends_a_first_request(worker: str) -> None:
    both = TwoWorkers()
    async with only_busy(both.watch, worker, both.ask):
        assert both.watch.busy() == [worker]
    assert sum(both.running.values()) == 0
