"""Faults of a virtual cluster: what goes wrong, when, and for how long."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextvars import Context
from functools import partial
from itertools import product
from math import isfinite
from random import Random
from typing import Any, Literal

import msgspec

from livescale.load.simulate.cluster import VirtualCluster, VirtualProcess
from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.shared.simulation.disturbance import Disturbance, disturbed
from livescale.shared.simulation.sparse_memory import SparseContent

FaultKind = Literal["kill", "freeze", "part", "lose", "delay", "repeat", "slow-disk", "cut-link", "damage"]
MESSAGE_KINDS: tuple[FaultKind, ...] = ("lose", "delay", "repeat")
RESTART_SECONDS = 1.0  # after which a process that ended by itself is started again, as by a supervisor


class ClusterFault(msgspec.Struct, frozen=True, kw_only=True):
    """Something that goes wrong `at` seconds after the faults begin, and is over `seconds` later; infinity is never.

    `who` is a process by its id, or all of a service or of a machine. What befalls them:

    - kill: they end at once; when it is over they are started again.
    - freeze: they stand still, as with SIGSTOP. What was sent to them meanwhile is there when they go on.
    - part: no message of the bus reaches or leaves them, and all of them are lost. Their links go on.
    - slow-disk: reading from the disks of hosts takes `amount` times as long.
    - damage: the share `amount` of what they send of parameters arrives damaged.
    - cut-link: nothing passes on the links between `who` and `other`.

    lose, delay, repeat befall the share `amount` of all messages of the bus.
    """

    at: float
    what: FaultKind
    who: str = ""
    other: str = ""
    seconds: float = 1.0
    amount: float = 0.0


class ClusterFaultInjector:
    """Lets faults happen to a cluster. Processes that end by themselves are started again, and noted in `crashes`.

    `happened` has each fault with the processes that it befell: those that did not run at its time are left out.
    """

    def __init__(self, cluster: VirtualCluster, seed: int = 0) -> None:
        self.happened: list[tuple[ClusterFault, list[str]]] = []
        self.crashes: list[tuple[float, str, Exception]] = []
        self._cluster = cluster
        self._chance = Random(seed)
        self._usual = cluster.broker.delays
        self._disturbances: list[Disturbance] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: Counter[Hashable] = Counter()  # by how many faults: sleeps, buses, and pairs of links
        self._damaging: defaultdict[bytes, list[float]] = defaultdict(list)  # shares, by address of the sender
        cluster.on_crash, cluster.links.network.spoil = self._crashed, self._spoil

    def start(self, faults: Sequence[ClusterFault]) -> None:
        """Let each of `faults` happen at its time, counted from now."""
        for fault in faults:
            self._later(fault.at, lambda fault=fault: self.apply(fault))  # type: ignore[misc]

    def apply(self, fault: ClusterFault) -> None:
        """Let a fault happen now. Raises ValueError where it names nobody of the cluster."""
        befallen = [id for id in victims(fault, self._cluster.settings) if id in self._cluster.processes]
        self.happened.append((fault, befallen))
        if fault.what in MESSAGE_KINDS:
            self._disturb(fault)
        elif fault.what == "cut-link":
            self._cut(fault)
        else:
            act = {
                "kill": self._kill,
                "freeze": self._freeze,
                "part": self._part,
                "slow-disk": self._slow,
                "damage": self._damage,
            }[fault.what]
            for id in befallen:
                act(id, fault)

    async def close(self) -> None:
        """Let nothing more happen. What is not over stays as it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _kill(self, id: str, fault: ClusterFault) -> None:
        self._do(self._end(id, fault.seconds))

    def _freeze(self, id: str, fault: ClusterFault) -> None:
        sleep = self._cluster.processes[id].sleep
        sleep.stop()
        self._hold(sleep, fault.seconds, sleep.go_on)

    def _part(self, id: str, fault: ClusterFault) -> None:
        process = self._cluster.processes[id]

        def join() -> None:
            if self._runs(id, process):
                process.bus.forget()
                process.bus.release()

        process.bus.hold()
        self._hold(process.bus, fault.seconds, join)

    def _slow(self, id: str, fault: ClusterFault) -> None:
        disk = self._cluster.disks[id]
        disk.slowness *= fault.amount

        def recover() -> None:
            disk.slowness /= fault.amount

        self._later(fault.seconds, recover)

    def _damage(self, id: str, fault: ClusterFault) -> None:
        shares = self._damaging[id.encode()]
        shares.append(fault.amount)
        self._later(fault.seconds, lambda: shares.remove(fault.amount))

    def _spoil(self, sender: bytes, content: SparseContent) -> SparseContent:
        shares = self._damaging.get(sender)
        return content.damaged() if shares and self._chance.random() < sum(shares) else content

    def _cut(self, fault: ClusterFault) -> None:
        network, find = self._cluster.links.network, self._cluster.settings.find
        pairs = [(one.encode(), other.encode()) for one, other in product(find(fault.who), find(fault.other))]
        for pair in pairs:
            network.cut(*pair)
            self._hold(frozenset(pair), fault.seconds, partial(network.mend, *pair))

    def _disturb(self, fault: ClusterFault) -> None:
        share = fault.amount
        disturbance = {
            "lose": Disturbance(losses=share),
            "delay": Disturbance(delays=share),
            "repeat": Disturbance(copies=share),
        }[fault.what]
        self._disturbances.append(disturbance)
        self._set_delays()

        def calm() -> None:
            self._disturbances.remove(disturbance)
            self._set_delays()

        self._later(fault.seconds, calm)

    def _set_delays(self) -> None:
        """Disturb messages by all that goes on; those of a calm bus take their usual time."""
        broker, total = self._cluster.broker, sum(self._disturbances, Disturbance())
        broker.delays = disturbed(self._usual, total, self._chance) if self._disturbances else self._usual

    def _crashed(self, id: str, error: Exception) -> None:
        self.crashes.append((self._cluster.now, id, error))
        self._do(self._end(id, RESTART_SECONDS))

    async def _end(self, id: str, seconds: float) -> None:
        """End a process at once, and start it again after so many seconds."""
        if id in self._cluster.processes:
            await self._cluster.kill(id)
            self._later(seconds, lambda: self._start(id))

    def _start(self, id: str) -> None:
        if id not in self._cluster.processes:
            self._cluster.start(id)

    def _runs(self, id: str, process: VirtualProcess) -> bool:
        return self._cluster.processes.get(id) is process

    def _hold(self, what: Hashable, seconds: float, let_go: Callable[[], None]) -> None:
        """Keep `what` as it is for so many seconds, or for longer where another fault does."""
        self._held[what] += 1

        def end() -> None:
            self._held[what] -= 1
            if not self._held[what]:
                del self._held[what]
                let_go()

        self._later(seconds, end)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            act()

        if isfinite(seconds):
            self._do(wait())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        # In no process: one that crashes would else bury itself.
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def victims(fault: ClusterFault, cluster: VirtualClusterSettings) -> list[str]:
    """The processes that a fault befalls. Raises ValueError where there are none, which says who can be named."""
    if fault.what in MESSAGE_KINDS:
        return []
    able = [id for id in cluster.places() if can_befall(fault.what, id)]
    for who in (fault.who, fault.other) if fault.what == "cut-link" else (fault.who,):
        if not set(able) & set(cluster.find(who)):
            raise ValueError(f"{fault.what} cannot happen to {who!r}; name one of {', '.join(able)}")
    return [id for id in cluster.find(fault.who) if id in able]


def can_befall(what: FaultKind, id: str) -> bool:
    """Whether a fault of this kind can befall a process. Gateways are the clients of a simulation, and stay well."""
    match what:
        case "slow-disk":
            return id.startswith("host-")
        case "cut-link" | "damage":
            return id.startswith(("host-", "worker-"))
        case _:
            return not id.startswith("gateway-")
