"""A control plane whose processes die, stall and lose messages; a process that dies is started again. Streams are real
ones."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from livescale.services.monitor.actor import Monitor
from livescale.services.monitor.settings import MonitorSettings
from livescale.services.planner.actor import Planner
from livescale.services.planner.main import make_planner
from livescale.services.planner.settings import PlannerSettings
from livescale.services.registry.actor import Registry
from livescale.services.registry.settings import RegistrySettings
from livescale.services.router.main import Router
from livescale.services.router.office import Office
from livescale.services.router.settings import RouterSettings
from livescale.shared.bus.codec import decode, fill_wildcards
from livescale.shared.bus.contract import BusError, ServiceInfo
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.scaling import Scale, ScaleRecord
from livescale.shared.policy.invariants import InvariantBroken
from livescale.shared.process.run import Actor, World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import CountedIds
from livescale.shared.runtime.settings import LiveName
from livescale.shared.simulation.disturbance import Disturbance, disturbed
from livescale.shared.simulation.listeners import Listener
from livescale.shared.simulation.local_bus import LocalBroker, LocalBus
from livescale.shared.simulation.processes import Process
from livescale.shared.subjects import LEASE, PLAN, SCALE
from tests.control.fake_host import FakeHost
from tests.control.fake_worker import FakeWorker, Faults
from tests.control.fakes import CLOCK, RATE, Node
from tests.control.headless_gateway import Ask, AskingGateway

SERVICES: dict[str, Callable[[World], Actor]] = {
    "registry": lambda world: Registry(world, RegistrySettings()),
    "router": lambda world: Router(world, RouterSettings(max_waiting=50)),
    "monitor": lambda world: Monitor(world, MonitorSettings()),
}
RESTART_SECONDS = 1.0


class DisturbedPlane:
    """Processes by name (`worker-0`, `router-1`, ...). `trouble` is what must not be; the first of it counts."""

    def __init__(self, seed: int, live: LiveName = "off") -> None:
        self.chance = random.Random(seed)
        rate = RATE if live == "pipeline" else 0.0  # with a rate every worker is by itself, without any a machine is
        self.planning = PlannerSettings(patience_seconds=5.0, live=live, live_every_hop=True, link_rate=rate)
        self.broker = LocalBroker(CLOCK)
        self.ids = CountedIds()
        self.fabric: dict[str, Node] = {}
        self.running: dict[str, Actor | Node | AskingGateway] = {}
        self.buses: dict[str, LocalBus] = {}
        self.lives: dict[str, asyncio.Task[None]] = {}
        self.asks: list[Ask] = []
        self.trouble: list[str] = []
        self.messages = 0
        self.starts: Counter[str] = Counter()
        self.epochs: dict[str, int] = {}
        self.leases: Counter[str] = Counter()  # changes of them, by new state
        self.ended: list[str] = []  # scales, by how
        self.operator = self.broker.connect()
        self._processes: dict[str, asyncio.Task[None]] = {}
        self._sleeps: dict[str, Process] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._check_is_due = False
        self._ended: set[str] = set()
        self.broker.routes.add(Listener(">", "", lambda *message: self._check_soon()))
        self.broker.routes.add(Listener(fill_wildcards(LEASE.pattern, {}), "", self._note_lease))
        self.broker.routes.add(Listener(fill_wildcards(PLAN.pattern, {}), "", self._note_scale))

    def start(self, *names: str) -> None:
        for name in names:
            self.lives[name] = asyncio.create_task(self._keep_up(name), name=f"life of {name}")

    async def _keep_up(self, name: str) -> None:
        """Start processes again that died, as a supervisor does."""
        while True:
            self.starts[name] += 1
            self._sleeps[name] = Process()
            context = self._sleeps[name].context()
            process = self._processes[name] = asyncio.create_task(self._make(name), name=name, context=context)
            try:
                await asyncio.wait([process])
            finally:
                process.cancel()
                await asyncio.wait([process])
                self.running.pop(name, None)
                self.fabric.pop(name, None)
                await self._cut(name)
            if not process.cancelled():
                self.trouble.append(f"{name} ended: {process.exception()!r}")
            await asyncio.sleep(RESTART_SECONDS)

    async def _cut(self, name: str) -> None:
        """A process that is gone says nothing more, even where its answers were under way."""
        bus = self.buses.pop(name)
        bus.hold()
        await bus.close()

    def _make(self, name: str) -> Coroutine[Any, Any, None]:
        service, index = name.rsplit("-", 1)
        bus = self.buses[name] = self.broker.connect()
        actor: Actor | Node | AskingGateway
        match service:
            case "worker":
                actor = FakeWorker(bus, name, f"box-{'ab'[int(index) % 2]}", self.fabric)
            case "host":
                actor = FakeHost(bus, name, self.fabric)
            case "gateway":
                actor = AskingGateway(bus, name)
            case _:
                info = ServiceInfo(service, name, f"the {service}")
                world = World(info, "box-a", bus, CLOCK, self.ids, Telemetry(service, name))
                actor = make_planner(world, self.planning) if service == "planner" else SERVICES[service](world)
        self.running[name] = actor
        return actor.run()

    def kill(self, name: str) -> None:
        """End a process at once, without any message."""
        if name in self.buses:
            self.buses[name].hold()
        self._sleeps[name].go_on()  # to its end
        self._processes[name].cancel()

    def stop(self, name: str) -> None:
        """End a process as with SIGTERM: it finishes what it was asked, and leaves."""
        process, bus = self._processes[name], self.buses.get(name)

        async def leave() -> None:
            if bus is not None and name in self.running:
                await bus.drain()
            process.cancel()

        self._keep(leave())

    def freeze(self, name: str, seconds: float) -> None:
        """Stop a process for a while. What was sent to it meanwhile is there when it goes on."""
        process = self._sleeps[name]
        process.stop()
        self.later(seconds, process.go_on)

    def stall(self, seconds: float) -> None:
        """Stop all processes together, as on a machine whose CPU is taken away."""
        for name in self.lives:
            self.freeze(name, seconds)

    def part(self, name: str, seconds: float) -> None:
        """Nothing reaches or leaves it meanwhile, and all of it is lost."""
        bus = self.buses.get(name)

        def join() -> None:
            if bus is not None and self.buses.get(name) is bus:
                bus.forget()
                bus.release()

        if bus is not None and name in self.running:
            bus.hold()
            self.later(seconds, join)

    def hurt(self, name: str, **faults: Any) -> None:
        """What goes wrong at this worker from here on, until it is calm or another is started in its place."""
        worker = self.running.get(name)
        if isinstance(worker, FakeWorker):
            worker.faults = replace(worker.faults, **faults)

    def outage(self, seconds: float) -> None:
        if self.broker.connected:
            self.broker.down()
            self.later(seconds, self.broker.up)

    def disturb(self, losses: float, delays: float, copies: float) -> None:
        """From here on shares of all messages are lost, late, or come twice."""
        disturbance = Disturbance(losses, delays, copies)
        self.broker.delays = disturbed(lambda subject: (0.0,), disturbance, self.chance)

    def calm(self) -> None:
        self.broker.delays = lambda subject: (0.0,)
        for process in self.running.values():
            if isinstance(process, FakeWorker):
                process.faults = Faults()

    def ask(self, gateway: str, model: str, max_tokens: int, count: int = 1, seconds: float = 600.0) -> None:
        found = self.running.get(gateway)
        for _ in range(count if isinstance(found, AskingGateway) else 0):
            self.asks.append(Ask(len(self.asks), max_tokens, model, seconds))
            found.ask(self.asks[-1])  # type: ignore[union-attr]

    def scale(self, model: str, instances: int) -> None:
        """Scale by hand; the planner may refuse."""

        async def ask() -> None:
            with suppress(BusError):
                await self.operator.call(SCALE, Scale(model=model, instances=instances), timeout=5.0)

        self._keep(ask())

    def leave(self, index: int) -> None:
        if self.asks:
            ask = self.asks[index % len(self.asks)]
            for found in self.running.values():
                if isinstance(found, AskingGateway):
                    found.leave(ask)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            act()

        self._keep(wait())

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _note_lease(self, subject: str, data: bytes, *others: object) -> None:
        self.leases[decode(LeaseChanged, data, json=LEASE.json).state] += 1

    def _note_scale(self, subject: str, data: bytes, *others: object) -> None:
        record = decode(ScaleRecord, data, json=PLAN.json)
        if record.state in ("done", "failed") and record.id not in self._ended:
            self._ended.add(record.id)
            self.ended.append(record.state)

    def _check_soon(self) -> None:
        """After the event that made this message, not in the middle of its effects."""
        self.messages += 1
        if not self._check_is_due:
            self._check_is_due = True
            asyncio.get_running_loop().call_soon(self.check)

    def check(self) -> None:
        """Check the invariants of every policy that runs."""
        self._check_is_due = False
        for name, actor in self.running.items():
            try:
                self._check(actor)
            except InvariantBroken as error:
                self.trouble.append(f"{CLOCK.now():.2f} s, {name}: {error}")

    def _check(self, actor: Actor | Node | AskingGateway) -> None:
        match actor:
            case Registry():
                actor._leases.check_invariants()
                actor._pool.check_invariants({m.id for m in actor._leases.members() if m.lease != "dead"})
                for member in actor._leases.members():
                    if member.epoch < self.epochs.get(member.id, 0):
                        raise InvariantBroken(f"the epoch of {member.id} fell to {member.epoch}")
                    self.epochs[member.id] = member.epoch
            case Planner():
                actor._store.check_invariants()
            case Monitor():
                actor._policy.check_invariants()
            case Router(office=Office() as office):
                office.policy.check_invariants()
            case FakeWorker():
                actor.lifecycle.check_invariants()
            case AskingGateway():
                actor.streams.check_invariants()
                for generation in actor.generations.values():
                    generation.check_invariants()

    async def end(self) -> None:
        for process in self._sleeps.values():
            process.go_on()
        tasks = [*self._background, *self.lives.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for bus in list(self.broker.buses):
            await bus.close()
