"""What a simulated cluster used over time: workers by what they do, host memory, and bytes on the network."""

import itertools
from collections import defaultdict
from collections.abc import Callable

from livescale.shared.bus.codec import decode
from livescale.shared.bus.contract import M
from livescale.shared.messages.membership import HostReport, LeaseChanged, WorkerReport
from livescale.shared.simulation.fair_flows import FairFlow, FairFlows
from livescale.shared.simulation.listeners import Listener
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.simulation.virtual_time import machine_time

Steps = list[tuple[float, float]]  # from when on, how much


class CountedFlows(FairFlows):
    """Flows, with the bytes that crossed the network in each second."""

    def __init__(self) -> None:
        super().__init__()
        self.network_bytes: dict[int, float] = defaultdict(float)

    def passed(self, flow: FairFlow, start: float, end: float, size_bytes: float) -> None:
        if flow.path[0].kind != "nic_out":
            return
        counted = 0.0
        for second in range(int(start), int(end) + 1):
            until = size_bytes * (min(second + 1, end) - start) / (end - start) if end > start else size_bytes
            self.network_bytes[second] += until - counted
            counted = until


class UsageWatch:
    """Follows the heartbeats of workers and hosts, without a message of its own.

    A worker is in use from its LOAD until it is spare again, or dead: loading and draining count.
    """

    def __init__(self, broker: LocalBroker) -> None:
        self.workers: Steps = []
        self.cached: Steps = []
        self._busy = set[str]()
        self._caches: dict[str, int] = {}

        def watch(subject: str, type: type[M], take: Callable[[M], None]) -> None:
            def deliver(topic: str, data: bytes, *_: object) -> None:
                take(decode(type, data, json=True))

            broker.watchers.add(Listener(subject, "", deliver))

        watch("hb.worker.*", WorkerReport, self._worker)
        watch("evt.lease.*", LeaseChanged, self._lease)
        watch("hb.host.*", HostReport, self._host)

    def used_seconds(self, start: float, end: float) -> float:
        """Worker seconds in use between two times of the event loop."""
        edges = [(max(start, at), count) for at, count in self.workers if at < end] + [(end, 0.0)]
        return sum((after - at) * count for (at, count), (after, _) in itertools.pairwise(edges))

    def _worker(self, report: WorkerReport) -> None:
        (self._busy.discard if report.state == "spare" else self._busy.add)(report.id)
        note(self.workers, machine_time(), len(self._busy))

    def _lease(self, change: LeaseChanged) -> None:
        if change.state == "dead":
            self._busy.discard(change.id)
            note(self.workers, machine_time(), len(self._busy))

    def _host(self, report: HostReport) -> None:
        self._caches[report.id] = report.cache_bytes
        note(self.cached, machine_time(), sum(self._caches.values()))


def note(steps: Steps, at: float, value: float) -> None:
    """Add a step, where the value is another one."""
    if not steps or steps[-1][1] != value:
        steps.append((at, value))
