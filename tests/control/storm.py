"""A control plane in a storm: real services, streams and generations; processes that die are started again."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from services.gateway.errors import ApiError
from services.gateway.generation import Engine, Generation
from services.gateway.metrics import GatewayMetrics
from services.gateway.output import Piece
from services.gateway.peers import Peers
from services.gateway.sequence import Fresh
from services.gateway.streams import Streams
from services.monitor.actor import Monitor
from services.monitor.settings import MonitorSettings
from services.planner.actor import Planner
from services.planner.settings import PlannerSettings
from services.registry.actor import Registry
from services.registry.settings import RegistrySettings
from services.router.actor import Deposed, Router
from services.router.settings import RouterSettings
from shared.bus.contract import BusError, Call, Context, ServiceInfo
from shared.bus.local import Listener, LocalBroker, LocalBus
from shared.invariants import InvariantBroken
from shared.membership import Membership
from shared.messages.message import Message
from shared.messages.requests import Submit
from shared.process import Actor, World
from shared.telemetry import Telemetry
from shared.world import CountedIds
from tests.control.fakes import CLOCK, FakeHost, FakeWorker, Node

SERVICES: dict[str, Callable[[World], Actor]] = {
    "registry": lambda world: Registry(world, RegistrySettings()),
    "router": lambda world: Router(world, RouterSettings(max_waiting=50)),
    "planner": lambda world: Planner(world, PlannerSettings(patience_seconds=5.0)),
    "monitor": lambda world: Monitor(world, MonitorSettings()),
}
PATIENCE_SECONDS = 600.0
RESTART_SECONDS = 1.0


@dataclass
class Ask:
    """A client's request and what it got. `outcome` is None until the end."""

    number: int
    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    refusals: int = 0
    outcome: str | None = None
    leaves: bool = False


class PlainOutput:
    """Tokens without a text."""

    def feed(self, fresh: Fresh) -> Piece:
        return Piece("", fresh.token_ids, None if fresh.finish_reason is None else "length")


class Door:
    """A gateway without HTTP, and the clients in front of it."""

    def __init__(self, bus: LocalBus, id: str) -> None:
        self.id = id
        metrics = GatewayMetrics(Telemetry("gateway", id))
        self.streams = Streams(bus, id, metrics, 1000, 1024)
        self.engine = Engine(bus, CLOCK, self.streams, metrics)
        self.membership = Membership(bus, CLOCK, "gateway", id, "box-a")
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        arriving = await self.streams.listen()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.streams.run(arriving))
                group.create_task(Peers(self.engine.bus, self.streams).run())
                group.create_task(self.membership.run())
        finally:
            for task in self.tasks.values():
                task.cancel()
            await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    def ask(self, ask: Ask) -> None:
        self.tasks[ask.number] = asyncio.create_task(self.serve(ask), name=f"ask {ask.number}")

    def leave(self, ask: Ask) -> None:
        if ask.number in self.tasks and ask.outcome is None:
            ask.leaves = True
            self.tasks[ask.number].cancel()

    async def serve(self, ask: Ask) -> None:
        try:
            while ask.outcome is None:
                await self.attempt(ask)
        except asyncio.CancelledError:
            ask.outcome = "left" if ask.leaves else "broken"

    async def attempt(self, ask: Ask) -> None:
        """As the API allows: again where it was refused with a time, and no token had come."""

        async def emit(piece: Piece) -> None:
            ask.tokens += piece.token_ids

        submit = Submit(
            request_id=f"{self.id}-{ask.number}-{ask.refusals}",
            model="m",
            gateway=self.id,
            prompt=[1] * 20,
            max_tokens=ask.max_tokens,
            deadline=CLOCK.wall() + PATIENCE_SECONDS,
        )
        try:
            await Generation(self.engine, submit, PlainOutput(), Context()).run(emit)  # type: ignore[arg-type]
        except ApiError as error:
            if ask.tokens or error.status not in (429, 503) or error.retry_after_ms is None:
                ask.outcome = f"error {error.status} {error}"
                return
            ask.refusals += 1
            await asyncio.sleep(error.retry_after_ms / 1000)
        else:
            ask.outcome = "complete"


class Storm:
    """Processes by name (`worker-0`, `router-1`, ...). `trouble` is what must not be; the first of it counts."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.broker = LocalBroker(CLOCK)
        self.ids = CountedIds()
        self.fabric: dict[str, Node] = {}
        self.running: dict[str, Actor | Node | Door] = {}
        self.buses: dict[str, LocalBus] = {}
        self.lives: dict[str, asyncio.Task[None]] = {}
        self.asks: list[Ask] = []
        self.trouble: list[str] = []
        self.starts: Counter[str] = Counter()
        self.epochs: dict[str, int] = {}
        self.operator = self.broker.connect()
        self._processes: dict[str, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._check_is_due = False
        self.broker.listen(Listener(">", "", lambda *message: self._check_soon()))

    def start(self, *names: str) -> None:
        for name in names:
            self.lives[name] = asyncio.create_task(self._keep_up(name), name=f"life of {name}")

    async def _keep_up(self, name: str) -> None:
        """What a supervisor does."""
        while True:
            self.starts[name] += 1
            process = self._processes[name] = asyncio.create_task(self._make(name), name=name)
            try:
                await asyncio.wait([process])
            finally:
                process.cancel()
                await asyncio.wait([process])
                self.running.pop(name, None)
                self.fabric.pop(name, None)
                await self._cut(name)
            if not process.cancelled() and not is_deposed(process.exception()):
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
        actor: Actor | Node | Door
        match service:
            case "worker":
                actor = FakeWorker(bus, name, f"box-{'ab'[int(index) % 2]}", self.fabric)
            case "host":
                actor = FakeHost(bus, name, self.fabric)
            case "gateway":
                actor = Door(bus, name)
            case _:
                info = ServiceInfo(service, name, f"the {service}")
                actor = SERVICES[service](World(info, "box-a", bus, CLOCK, self.ids, Telemetry(service, name)))
        self.running[name] = actor
        return actor.run()  # type: ignore[union-attr]

    def kill(self, name: str) -> None:
        if name in self.buses:
            self.buses[name].hold()
        self._processes[name].cancel()

    def freeze(self, name: str, seconds: float) -> None:
        """Nothing reaches or leaves it meanwhile; all of it does afterwards."""
        bus = self.buses.get(name)
        if bus is not None and name in self.running:
            bus.hold()
            self._later(seconds, lambda: bus.release() if self.buses.get(name) is bus else None)

    def outage(self, seconds: float) -> None:
        if self.broker.connected:
            self.broker.down()
            self._later(seconds, self.broker.up)

    def disturb(self, losses: float, delays: float, copies: float) -> None:
        """From here on shares of all messages are lost, late, or come twice."""

        def fate(subject: str) -> Sequence[float]:
            if self.chance.random() < losses:
                return ()
            first = self.chance.uniform(0.0, 0.3) if self.chance.random() < delays else 0.0
            return (first, self.chance.uniform(0.0, 0.5)) if self.chance.random() < copies else (first,)

        self.broker.delays = fate

    def calm(self) -> None:
        self.broker.delays = lambda subject: (0.0,)

    def ask(self, gateway: str, max_tokens: int) -> None:
        door = self.running.get(gateway)
        if isinstance(door, Door):
            self.asks.append(Ask(len(self.asks), max_tokens))
            door.ask(self.asks[-1])

    def leave(self, index: int) -> None:
        if self.asks:
            ask = self.asks[index % len(self.asks)]
            for door in self.running.values():
                if isinstance(door, Door):
                    door.leave(ask)

    def operate(self, call: Call[Any, Any], message: Message) -> None:
        """What an operator asks for now and then; the answer may be a refusal."""

        async def ask() -> None:
            with suppress(BusError):
                await self.operator.call(call, message, timeout=5.0)

        self._keep(ask())

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            act()

        self._keep(wait())

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _check_soon(self) -> None:
        """After the event that made this message, not in the middle of its effects."""
        if not self._check_is_due:
            self._check_is_due = True
            asyncio.get_running_loop().call_soon(self.check)

    def check(self) -> None:
        """The invariants of every policy that runs."""
        self._check_is_due = False
        for name, actor in self.running.items():
            try:
                self._check(actor)
            except InvariantBroken as error:
                self.trouble.append(f"{CLOCK.now():.2f} s, {name}: {error}")

    def _check(self, actor: Actor | Node | Door) -> None:
        match actor:
            case Registry():
                actor._leases.check_invariants()
                actor._pool.check_invariants({m.id for m in actor._leases.members() if m.lease != "dead"})
                for member in actor._leases.members():
                    if member.epoch < self.epochs.get(member.id, 0):
                        raise InvariantBroken(f"the epoch of {member.id} fell to {member.epoch}")
                    self.epochs[member.id] = member.epoch
            case Planner():
                actor._book.check_invariants()
            case Router():
                actor._policy.check_invariants()

    async def end(self) -> None:
        tasks = [*self._background, *self.lives.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for bus in list(self.broker.buses):
            await bus.close()


def is_deposed(error: BaseException | None) -> bool:
    """A router that ended because another may be in office."""
    return isinstance(error, BaseExceptionGroup) and error.split(Deposed)[1] is None
