"""What a simulated cluster used over time: workers by what they do, host memory, and bytes on the network."""

from collections import defaultdict
from collections.abc import Callable

from livescale.load.workers_in_use import Steps, WorkersInUse, note, used_seconds
from livescale.shared.bus.codec import decode
from livescale.shared.bus.contract import M
from livescale.shared.messages.membership import HostReport, LeaseChanged, WorkerReport
from livescale.shared.simulation.fair_flows import FairFlow, FairFlows
from livescale.shared.simulation.listeners import Listener
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.simulation.virtual_time import running_loop


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
    """Follows the heartbeats of workers and hosts, without a message of its own."""

    def __init__(self, broker: LocalBroker) -> None:
        self._in_use, loop = WorkersInUse(), running_loop()  # at every heartbeat: without a call for the time
        self.cached: Steps = []
        self._caches: dict[str, int] = {}

        def watch(subject: str, type: type[M], take: Callable[[M, float], None]) -> None:
            def deliver(topic: str, data: bytes, *_: object) -> None:
                take(decode(type, data, json=True), loop.now)

            broker.watchers.add(Listener(subject, "", deliver))

        watch("hb.worker.*", WorkerReport, self._in_use.reported)
        watch("evt.lease.*", LeaseChanged, self._in_use.lease_changed)
        watch("hb.host.*", HostReport, self._host)

    @property
    def workers(self) -> Steps:
        """How many workers were in use, from when on."""
        return self._in_use.steps

    def used_seconds(self, start: float, end: float) -> float:
        """Worker seconds in use between two times of the event loop."""
        return used_seconds(self.workers, start, end)

    def _host(self, report: HostReport, at: float) -> None:
        self._caches[report.id] = report.cache_bytes
        note(self.cached, at, sum(self._caches.values()))
