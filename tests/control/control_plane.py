"""The four services of the control plane on a local bus, with fake workers, hosts and a gateway around them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from livescale.services.monitor.actor import Monitor
from livescale.services.monitor.settings import MonitorSettings
from livescale.services.planner.main import make_planner
from livescale.services.planner.settings import PlannerSettings
from livescale.services.registry.actor import Registry
from livescale.services.registry.settings import RegistrySettings
from livescale.services.router.main import Router
from livescale.services.router.settings import RouterSettings
from livescale.shared.bus.contract import BusError, ServiceInfo
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import AskSnapshot, ModelEntry, Named, Register, Snapshot
from livescale.shared.messages.requests import Cancel, RequestLost, Submit, TokenFrame
from livescale.shared.messages.scaling import AskDecisions, AskScales, Decision, Scale, ScaleAccepted, ScaleRecord
from livescale.shared.process.membership import Membership
from livescale.shared.process.run import Actor, World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import CountedIds
from livescale.shared.runtime.role_settings import DisaggregationName
from livescale.shared.runtime.settings import LiveName, PolicyName
from livescale.shared.simulation.listeners import Listener
from livescale.shared.simulation.local_bus import LocalBroker, LocalBus
from livescale.shared.simulation.processes import Process
from livescale.shared.subjects import CANCEL, DECISIONS, REGISTER, REMOVE, SCALE, SCALES, SNAPSHOT, SUBMIT, TOKENS
from tests.control.fake_host import FakeHost
from tests.control.fake_worker import FakeWorker, Faults
from tests.control.fakes import CLOCK, RATE, Node

LOGGED = ("evt.>", "hb.>", "tok.>", "req.>", "worker.*.running")


@dataclass
class FakeGateway:
    """A gateway that submits requests, collects tokens, and submits again what was lost."""

    bus: LocalBus
    id: str = "gateway-0"
    tokens: dict[str, list[int]] = field(default_factory=dict)
    finished: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    submitted: dict[str, Submit] = field(default_factory=dict)
    versions: dict[str, set[str | None]] = field(default_factory=dict)  # of the frames that a request's tokens came in
    errors: dict[str, str | None] = field(default_factory=dict)
    resubmits: bool = True

    async def run(self) -> None:
        frames = await self.bus.subscribe(TOKENS, gateway=self.id)
        membership = Membership(self.bus, CLOCK, "gateway", self.id, "box-a")
        async with asyncio.TaskGroup() as group:
            group.create_task(membership.run())
            async for received in frames:
                match received.message:
                    case TokenFrame() as frame:
                        self.collect(frame)
                    case RequestLost() as lost:
                        self.lost.append(lost.request_id)
                        if self.resubmits and lost.request_id not in self.finished:
                            group.create_task(self.resubmit(lost.request_id))

    def collect(self, frame: TokenFrame) -> None:
        for row in frame.rows:
            if row.token_ids:
                self.versions.setdefault(row.request_id, set()).add(frame.version)
            have = self.tokens.setdefault(row.request_id, [])
            if row.index <= len(have):
                have += row.token_ids[len(have) - row.index :]
            if row.finish_reason is not None:
                self.finished[row.request_id] = row.finish_reason
                self.errors[row.request_id] = row.error

    async def resubmit(self, request_id: str) -> None:
        first = self.submitted[request_id]
        request = Submit(
            request_id=request_id,
            model=first.model,
            gateway=self.id,
            prompt=first.prompt,
            generated=list(self.tokens.get(request_id, [])),
            max_tokens=first.max_tokens,
            deadline=first.deadline,
            version=next(iter(self.versions.get(request_id, {None}))),
        )
        await self.bus.call(SUBMIT, request, timeout=2.0)

    async def submit(
        self, id: str, model: str = "m", prompt: int = 20, max_tokens: int = 10, seconds: float = 60.0
    ) -> int:
        deadline = CLOCK.wall() + seconds
        request = Submit(
            request_id=id, model=model, gateway=self.id, prompt=[1] * prompt, max_tokens=max_tokens, deadline=deadline
        )
        self.submitted[id] = request
        return (await self.bus.call(SUBMIT, request, timeout=2.0)).ahead

    def cancel(self, id: str) -> None:
        self.bus.publish(CANCEL, Cancel(request_id=id))


class ControlPlane:
    """A running control plane."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.broker = LocalBroker(CLOCK)
        self.log: list[tuple[str, bytes]] = []
        self.fabric: dict[str, Node] = {}
        self.ids = CountedIds()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.processes: dict[str, Process] = {}
        self.buses: dict[str, LocalBus] = {}
        self.telemetry: dict[str, Telemetry] = {}
        self._group = group
        self.operator = self.broker.connect()
        self.buses["gateway-0"] = self.broker.connect()
        self.gateway = FakeGateway(self.buses["gateway-0"])
        for wanted in LOGGED:
            self.broker.routes.add(Listener(wanted, "", lambda subject, data, h, r: self.log.append((subject, data))))

    def world(self, service: str) -> World:
        bus = self.buses[f"{service}-0"] = self.broker.connect()
        info = ServiceInfo(service, f"{service}-0", f"the {service}")
        telemetry = self.telemetry[service] = Telemetry(service, f"{service}-0")
        return World(info, "box-a", bus, CLOCK, self.ids, telemetry)

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        async def running() -> None:
            await run()

        process = self.processes[name] = Process()
        self.tasks[name] = self._group.create_task(running(), name=name, context=process.context())

    def start_services(
        self,
        *,
        look_ahead: int = 0,
        patience: float = 5.0,
        policy: PolicyName = "auto",
        rate: float = RATE,
        live: LiveName = "off",
        slo: float | None = None,
        disaggregation: DisaggregationName = "off",
    ) -> None:
        """Start all services. With `slo`, targets go live only where a stop would break it."""
        planner = PlannerSettings(
            patience_seconds=patience,
            link_rate=rate,
            plan_policy=policy,
            live=live,
            live_when="always" if slo is None else "needed",
            ttft_slo=slo or 1.0,
            disaggregation=disaggregation,
        )
        router = RouterSettings(look_ahead=look_ahead, max_waiting=50, disaggregation=disaggregation)
        self._makers: dict[str, Callable[[World], Actor]] = {
            "registry": lambda world: Registry(world, RegistrySettings()),
            "router": lambda world: Router(world, router),
            "planner": lambda world: make_planner(world, planner),
            "monitor": lambda world: Monitor(world, MonitorSettings()),
        }
        for service in self._makers:
            self.restart(service)

    def restart(self, service: str) -> None:
        """Start a service that does not run, or no longer does."""
        self.start(f"{service}-0", self._makers[service](self.world(service)).run)

    def add_worker(self, index: int, faults: Faults | None = None) -> FakeWorker:
        id = f"worker-{index}"
        bus = self.buses[id] = self.broker.connect()
        worker = FakeWorker(bus, id, f"box-{'ab'[index % 2]}", self.fabric, faults)
        self.start(id, worker.run)
        return worker

    def add_host(self, index: int = 0) -> FakeHost:
        id = f"host-{index}"
        bus = self.buses[id] = self.broker.connect()
        host = FakeHost(bus, id, self.fabric)
        self.start(id, host.run)
        return host

    async def freeze(self, seconds: float, *names: str) -> None:
        """Stop these processes, or all there are, and let them go on later."""
        stopped = [self.processes[name] for name in names or self.tasks]
        for process in stopped:
            process.stop()
        await asyncio.sleep(seconds)
        for process in stopped:
            process.go_on()

    def count(self, subject: str) -> int:
        """Count the messages on this subject so far."""
        return sum(one == subject for one, _ in self.log)

    async def kill(self, name: str) -> None:
        """End the process at once, without any message."""
        self.buses[name].hold()
        await self.stop(name)

    async def stop(self, name: str) -> None:
        """End the process as planned, as with SIGTERM."""
        self.fabric.pop(name, None)
        task = self.tasks.pop(name)
        task.cancel()
        await asyncio.wait([task])
        await self.buses.pop(name).close()

    async def register(self, spec: ModelSpec) -> ModelEntry:
        return await self.operator.call(REGISTER, Register(spec=spec), timeout=5.0)

    async def remove(self, model: str) -> ModelEntry:
        return await self.operator.call(REMOVE, Named(model=model), timeout=5.0)

    async def scale(self, instances: int, model: str = "m") -> ScaleAccepted:
        return await self.operator.call(SCALE, Scale(model=model, instances=instances), timeout=5.0)

    async def snapshot(self) -> Snapshot:
        return await self.operator.call(SNAPSHOT, AskSnapshot(), timeout=5.0)

    async def records(self, model: str = "m") -> list[ScaleRecord]:
        return (await self.operator.call(SCALES, AskScales(model=model, limit=100), timeout=5.0)).records

    async def decisions(self, model: str = "m") -> list[Decision]:
        return (await self.operator.call(DECISIONS, AskDecisions(model=model, limit=100), timeout=5.0)).decisions

    async def serving(self, model: str = "m") -> list[str]:
        try:
            workers = (await self.snapshot()).workers
        except BusError:
            return []
        return [worker.id for worker in workers if worker.model == model and worker.state == "serving"]

    async def until(self, holds: Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
        """Wait for something to become true."""
        async with asyncio.timeout(seconds):
            while not await holds():  # noqa: ASYNC110 what is waited for is others' to know
                await asyncio.sleep(0.05)

    async def until_serving(self, count: int, model: str = "m", seconds: float = 20.0) -> None:
        async def holds() -> bool:
            return len(await self.serving(model)) == count

        await self.until(holds, seconds)


def spec(name: str = "m", **more: object) -> ModelSpec:
    common = {"path": f"/models/{name}", "downscale_delay_s": 1.0, "downscale_to_zero_delay_s": 3.0}
    return ModelSpec(name=name, **{**common, **more})  # type: ignore[arg-type]


@asynccontextmanager
async def control_plane(workers: int = 3, *, register: bool = True, **settings: object) -> AsyncIterator[ControlPlane]:
    """Everything up, one model registered and one instance of it serving."""
    group = asyncio.TaskGroup()
    async with group:
        plane = ControlPlane(group)
        plane.start_services(**settings)  # type: ignore[arg-type]
        plane.add_host()
        for index in range(workers):
            plane.add_worker(index)
        plane.start("gateway-0", plane.gateway.run)
        await asyncio.sleep(1.0)
        if register:
            await plane.register(spec())
            await plane.until_serving(1)
        try:
            yield plane
        finally:
            for task in plane.tasks.values():
                task.cancel()
            await asyncio.gather(*plane.tasks.values(), return_exceptions=True)
            for bus in list(plane.broker.buses):
                await bus.close()
