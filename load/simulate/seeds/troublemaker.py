"""Makes the faults of a random system come true, and starts again what ended, as a supervisor does."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

from livescale.load.simulate.cluster import VirtualProcess
from livescale.load.simulate.seeds.clients import GATEWAY, Clients
from livescale.load.simulate.seeds.faults import RESTART_SECONDS, Fault
from livescale.load.simulate.seeds.watched import WatchedCluster
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.disaggregation import SetRole
from livescale.shared.messages.scaling import Scale
from livescale.shared.simulation.disturbance import Disturbance, disturbed
from livescale.shared.subjects import ROLE, SCALE

COMMAND_SECONDS = 5.0


class Troublemaker:
    """Strikes a cluster with faults, each at its time from when `run` is called."""

    def __init__(self, cluster: WatchedCluster, clients: Clients, seed: int) -> None:
        self._cluster = cluster
        self._clients = clients
        self._chance = Random(f"disturbances {seed}")
        self._usual = cluster.broker.delays
        self._disturbances: list[Disturbance] = []
        self._frozen: Counter[str] = Counter()
        self._outages = 0

    async def run(self, faults: Sequence[Fault]) -> None:
        """Return when all is over, and everybody runs again."""
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                group.create_task(self._strike(fault), name=fault.describe())

    async def restart(self, id: str) -> None:
        """Start a process again that ended by itself."""
        self._cluster.processes.pop(id, None)
        self._ended(id)
        await asyncio.sleep(RESTART_SECONDS)
        self._start(id)

    async def _strike(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        match fault.kind:
            case "kill" | "stop":
                await self._end(fault)
            case "scale" | "role":
                await self._command(fault)
            case _:
                undo = self._begin(fault)
                await asyncio.sleep(fault.seconds)
                undo()

    async def _end(self, fault: Fault) -> None:
        process = self._cluster.processes.get(fault.target)
        if process is None:
            return
        if fault.kind == "kill" or process.sleep.is_stopped:  # one that is stopped does not hear that it is to end
            await self._cluster.kill(fault.target)
        else:
            await self._cluster.stop(fault.target)
        self._ended(fault.target)
        await asyncio.sleep(RESTART_SECONDS)
        self._start(fault.target)

    def _ended(self, id: str) -> None:
        if id == GATEWAY:
            self._clients.break_connections()

    def _start(self, id: str) -> None:
        if id not in self._cluster.processes:
            self._cluster.start(id)

    async def _command(self, fault: Fault) -> None:
        bus = self._cluster.operator
        with suppress(BusError):
            if fault.kind == "scale":
                scale = Scale(model=fault.target, instances=int(fault.amount))
                await bus.call(SCALE, scale, timeout=COMMAND_SECONDS)
            else:
                await bus.call(ROLE, SetRole(worker=fault.target, role=fault.role), timeout=COMMAND_SECONDS)

    def _begin(self, fault: Fault) -> Callable[[], None]:
        """Begin what lasts for a while. Returns what ends it."""
        cluster, target = self._cluster, fault.target
        match fault.kind:
            case "freeze":
                return self._freeze([target])
            case "stall":
                return self._freeze(cluster.ids)
            case "part":
                return self._part(target)
            case "outage":
                return self._outage()
            case "disturb":
                return self._disturb(Disturbance(fault.amount, fault.amount, fault.amount / 2))
            case "cut":
                ends = target.encode(), fault.other.encode()
                cluster.network.cut(*ends)
                return lambda: cluster.network.mend(*ends)
            case "damage":
                cluster.links.damaging[target] = fault.amount
                return lambda: cluster.links.damaging.update({target: 0.0})
            case _:
                cluster.disks[target].slowness = fault.amount
                return lambda: setattr(cluster.disks[target], "slowness", 1.0)

    def _freeze(self, ids: Sequence[str]) -> Callable[[], None]:
        held = [(id, self._cluster.processes[id]) for id in ids if id in self._cluster.processes]
        for id, process in held:
            self._frozen[id] += 1
            process.sleep.stop()

        def thaw() -> None:
            for id, process in held:
                self._frozen[id] -= 1
                if not self._frozen[id] or self._cluster.processes.get(id) is not process:
                    process.sleep.go_on()

        return thaw

    def _part(self, id: str) -> Callable[[], None]:
        """Nothing reaches or leaves the process by the bus, and all of it is lost."""
        process: VirtualProcess | None = self._cluster.processes.get(id)
        if process is not None:
            process.bus.hold()

        def join() -> None:
            if process is not None and self._cluster.processes.get(id) is process:
                process.bus.forget()
                process.bus.release()

        return join

    def _outage(self) -> Callable[[], None]:
        self._outages += 1
        self._cluster.broker.down()

        def end() -> None:
            self._outages -= 1
            if not self._outages:
                self._cluster.broker.up()

        return end

    def _disturb(self, disturbance: Disturbance) -> Callable[[], None]:
        self._disturbances.append(disturbance)
        self._set_delays()

        def calm() -> None:
            self._disturbances.remove(disturbance)
            self._set_delays()

        return calm

    def _set_delays(self) -> None:
        total = sum(self._disturbances, Disturbance())
        self._cluster.broker.delays = disturbed(self._usual, total, self._chance) if self._disturbances else self._usual
