"""Makes the faults of a random system come true."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

import msgspec
from msgspec.structs import asdict, replace

from livescale.load.simulate.cluster import VirtualProcess
from livescale.load.simulate.faults import MESSAGE_KINDS, ClusterFault, ClusterFaultInjector
from livescale.load.simulate.seeds.clients import Clients
from livescale.load.simulate.seeds.history import SeedFault, is_gateway
from livescale.load.simulate.seeds.moments import processes_that_are
from livescale.load.simulate.seeds.watched import WatchedCluster
from livescale.load.simulate.start import register
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import Named, Register
from livescale.shared.messages.scaling import Scale, SetRole
from livescale.shared.simulation.virtual_clock import machine_time
from livescale.shared.subjects import REGISTER, REMOVE, ROLE, SCALE

COMMAND_SECONDS = 5.0
STALL_LOOK_SECONDS = 0.02
AIM_SECONDS, AIM_LOOK_SECONDS = 4.0, 0.005
AFTER_SECONDS = 1e-6  # then what is over at the same time is over


class Troublemaker:
    """Strikes a cluster with faults, each at its time from when `run` is called."""

    def __init__(self, cluster: WatchedCluster, clients: Clients, specs: Sequence[ModelSpec], seed: int) -> None:
        self._cluster = cluster
        self._clients = clients
        self._specs = {spec.name: spec for spec in specs}  # of models and adapters
        self._injector = ClusterFaultInjector(cluster, seed)
        self._outages = 0
        self._chance = Random(f"aim {seed}")
        self._began = machine_time()
        self.struck: list[SeedFault] = []

    @property
    def crashes(self) -> list[tuple[float, str, Exception]]:
        """The processes that ended by themselves: when, and why."""
        return self._injector.crashes

    async def run(self, faults: Sequence[SeedFault]) -> None:
        """Return when all is over, and everybody runs again. `struck` has what has happened then, with whom it befell
        and when."""
        self._began = machine_time()
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                group.create_task(self._strike(fault), name=fault.describe())

    async def close(self) -> None:
        """Begin no more faults, and end those that still wait."""
        await self._injector.close()

    async def _strike(self, fault: SeedFault) -> None:
        await asyncio.sleep(fault.at)
        if fault.when:
            who = await self._aim(fault)
            if who is None:
                return
            if fault.wait:
                await asyncio.sleep(fault.wait)
            fault = replace(fault, who=who, at=machine_time() - self._began)
        self.struck.append(fault)
        match fault.what:
            case "scale" | "role" | "limit" | "update" | "form":
                await self._command(fault)
            case "remove":
                await self._remove(fault)
            case "stop" | "kill" if fault.what == "stop" or is_gateway(fault.who):
                await self._end(fault)
            case "stall":
                await self._stall(fault.seconds)
            case "outage" | "noise":
                undo = self._begin(fault)
                await asyncio.sleep(fault.seconds)
                undo()
            case what:
                told = {
                    name: value
                    for name, value in asdict(fault).items()
                    if name not in ("role", "what", "at", "when", "wait")
                }
                self._injector.apply(ClusterFault(at=0.0, what=what, **told))
                await asyncio.sleep(fault.seconds + AFTER_SECONDS)

    async def _aim(self, fault: SeedFault) -> str | None:
        """Wait until a process is as the fault wants it. Returns whom it befalls; None if none came to be so."""
        until = machine_time() + AIM_SECONDS
        while machine_time() < until:
            found = processes_that_are(fault.when, self._cluster)
            if found:
                befalls_all = fault.what in (*MESSAGE_KINDS, "noise")
                return fault.who if fault.who or befalls_all else self._chance.choice(found)
            await asyncio.sleep(AIM_LOOK_SECONDS)
        return None

    async def _end(self, fault: SeedFault) -> None:
        cluster, id = self._cluster, fault.who
        process = cluster.processes.get(id)
        if process is not None:
            # One that stands still does not hear that it is to end.
            await (cluster.kill(id) if fault.what == "kill" or process.sleep.is_stopped else cluster.stop(id))
            self._clients.break_connections(id)
        await asyncio.sleep(fault.seconds)
        if id not in cluster.processes:
            cluster.start(id)

    async def _command(self, fault: SeedFault) -> None:
        bus = self._cluster.operator
        with suppress(BusError):
            match fault.what:
                case "scale":
                    await bus.call(SCALE, Scale(model=fault.who, instances=int(fault.amount)), timeout=COMMAND_SECONDS)
                case "role":
                    await bus.call(ROLE, SetRole(worker=fault.who, role=fault.role), timeout=COMMAND_SECONDS)
                case "limit":
                    limited = ModelSpec(name=fault.who, path="", max_instances=int(fault.amount))
                    register = Register(spec=limited, named=["max_instances"])
                    await bus.call(REGISTER, register, timeout=COMMAND_SECONDS)
                case "form":
                    name, _, value = fault.other.partition("=")
                    other = msgspec.convert({"name": fault.who, "path": "", name: value}, ModelSpec, strict=False)
                    await bus.call(REGISTER, Register(spec=other, named=[name]), timeout=COMMAND_SECONDS)
                case _:
                    other = ModelSpec(name=fault.who, path=fault.other)
                    await bus.call(REGISTER, Register(spec=other, named=["path"]), timeout=COMMAND_SECONDS)

    async def _remove(self, fault: SeedFault) -> None:
        bus = self._cluster.operator
        with suppress(BusError):
            await bus.call(REMOVE, Named(model=fault.who), timeout=COMMAND_SECONDS)
        await asyncio.sleep(fault.seconds)
        await register(self._cluster, self._specs[fault.who])

    def _begin(self, fault: SeedFault) -> Callable[[], None]:
        """Begin what lasts for a while. Returns what ends it."""
        match fault.what:
            case "outage":
                return self._outage()
            case _:
                damaging = self._cluster.network.damaging
                damaging.append(fault.amount)
                return lambda: damaging.remove(fault.amount)

    async def _stall(self, seconds: float) -> None:
        """Stop all processes for a while, those included that are started meanwhile."""
        held, until = dict[int, VirtualProcess](), machine_time() + seconds
        while machine_time() < until:
            for process in self._cluster.processes.values():
                held[id(process)] = process
                process.sleep.stop()  # again, as a freeze that is over meanwhile wakes it
            await asyncio.sleep(min(STALL_LOOK_SECONDS, until - machine_time()))
        for process in held.values():
            process.sleep.go_on()

    def _outage(self) -> Callable[[], None]:
        self._outages += 1
        self._cluster.broker.down()

        def end() -> None:
            self._outages -= 1
            if not self._outages:
                self._cluster.broker.up()

        return end
