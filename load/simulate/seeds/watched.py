"""A virtual cluster in which engines and links note what they do, and links may damage what they carry."""

from collections.abc import Callable

from livescale.load.simulate.cluster import VirtualCluster
from livescale.load.simulate.seeds.history import History
from livescale.load.simulate.seeds.looks import declared_dead
from livescale.load.simulate.seeds.watched_engine import WatchedRunner
from livescale.load.simulate.seeds.watched_links import WatchedNetwork
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.bus.codec import decode, fill_wildcards
from livescale.shared.messages.requests import Admit
from livescale.shared.messages.transfers import Load
from livescale.shared.model.latency import find_latency
from livescale.shared.runtime.clock import Clock
from livescale.shared.simulation.listeners import Listener
from livescale.shared.simulation.processes import this_process
from livescale.shared.simulation.virtual_clock import machine_time
from livescale.shared.subjects import ADMIT, LOAD


class WatchedCluster(VirtualCluster):
    """A cluster whose `seen` is a history of what its engines and links do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen = History()
        self.network = WatchedNetwork(self.settings.message_seconds, self.seen, self.settings.seed)
        self.links.network = self.network
        self._latency = find_latency(self.settings.worker.engine_profile)
        for call, note in ((LOAD, self._note_load), (ADMIT, self._note_admission)):
            self.broker.watchers.add(Listener(fill_wildcards(call.pattern, {}), "", note))

    def _note_load(self, subject: str, data: bytes, *rest: object) -> None:
        command = decode(Load, data, json=False)
        self.seen.loads.add((subject.split(".")[1], command.epoch, command.plan_id))

    def _note_admission(self, subject: str, data: bytes, *rest: object) -> None:
        """Note a request that a router gives to a worker although it was declared dead. Only it sends such messages."""
        sender = this_process()
        router = next((id for id, one in self.processes.items() if one.sleep is sender), "")
        if router in declared_dead(self):
            command = decode(Admit, data, json=False)
            what = f"{command.request.request_id} to {subject.split('.')[1]} at {machine_time():.2f} s"
            self.seen.usurped.append(f"{router} gave {what}, after it had been declared dead")

    def make_runner(self, told: WorkerSettings) -> Callable[[Clock], WatchedRunner]:
        life = f"{told.id} of {machine_time():.3f} s"
        return lambda clock: WatchedRunner(life, told, self._latency, clock, self.seen)
