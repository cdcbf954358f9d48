"""The base of every process: logs, bus, membership of a micro service, signals and exit code.

By convention `services/<name>/main.py` holds the whole wiring of a service:

    def main(settings: RouterSettings) -> None:
        run_process(settings, "router", lambda world: Router(world, settings))

`build` gets the `World` and returns the actor. The actor's `run()` is one TaskGroup and ends only by being cancelled.
Nothing is printed on stdout.
"""

import asyncio
import gc
import os
import platform
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog
import uvloop

from livescale.shared.bus.contract import Bus, BusError, Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.bus.identity import NatsFiles
from livescale.shared.bus.nats import NatsBus
from livescale.shared.messages.membership import AskMetrics, MetricsText, Report, ServiceName
from livescale.shared.process.membership import Membership
from livescale.shared.process.system_port import CannotListen, SystemPort, announced, listen, write_address
from livescale.shared.process.telemetry import Telemetry, configure_logging
from livescale.shared.runtime.clock import Clock, Ids, RandomIds, RunningClock, RunningLoop
from livescale.shared.runtime.settings import ProcessSettings
from livescale.shared.subjects import METRICS

CONNECT_SECONDS = 30.0
STOP_SECONDS = 15.0
# A collection of the young runs after so many new objects. Requests under way make thousands that live on for a moment;
# with Python's own 700 the gateway spent a fifteenth of its time looking through them again and again.
YOUNG_OBJECTS = 10_000

DESCRIPTIONS: dict[ServiceName, str] = {
    "gateway": "OpenAI-compatible REST API",
    "router": "decides which instance serves a request",
    "registry": "parameter pool, membership and leases",
    "planner": "plans scales and carries them through",
    "monitor": "decides when to scale",
    "host": "host cache and checkpoints on disk",
    "worker": "runs layers, holds and sends parameters",
}

log = structlog.get_logger()


class Ends(Exception):
    """Raised to end a process on purpose; the text says why. It is logged as a warning, without a traceback."""


class Actor(Protocol):
    """A service, built once the process is connected to the bus."""

    async def run(self) -> None: ...

    async def why_not_ready(self) -> str | None:
        """Why it does not serve its role just now, for /ready; None where it does."""


@dataclass(frozen=True)
class World:
    """All that an actor may touch. It serves under `info`; `host` is this machine's name, `system` the address of the
    system port, or empty."""

    info: ServiceInfo
    host: str
    bus: Bus
    clock: Clock
    ids: Ids
    telemetry: Telemetry
    system: str = ""

    def membership(
        self,
        service: ServiceName,
        *,
        address: bytes | None = None,
        report: Callable[[int], Report] | None = None,
        on_stale: Callable[[], None] = lambda: None,
        place: str = "",
        kernels: str | None = None,
    ) -> Membership:
        """The membership of this process, which its actor has to run; see `Membership`."""
        id, host, system = self.info.id, self.host, self.system
        return Membership(self.bus, self.clock, service, id, host, address, report, on_stale, place, kernels, system)


Build = Callable[[World], Actor]


def run_process(settings: ProcessSettings, service: ServiceName, build: Build) -> None:
    """Run the actor until SIGTERM or SIGINT, then exit: 0 when asked to, 1 on an error or when the bus closed."""
    id = settings.id or f"{service}-0"
    configure_logging(service, id, settings.log_level, settings.log_format)
    try:
        main = _main(settings, ServiceInfo(service, id, DESCRIPTIONS[service]), build)
        code = uvloop.run(main, loop_factory=RunningLoop)
    except Exception as error:  # noqa: BLE001 the process's main: whatever it is, say it and end
        tell_failure(error)
        code = 1
    sys.stderr.flush()
    sys.exit(code)


def tell_failure(error: Exception) -> None:
    """Log why a process fails: a line for what is no bug, a traceback for anything else."""
    causes = list(_leaves(error))
    if not all(isinstance(cause, BusError | Ends) for cause in causes):
        log.error("process_failed", exc_info=error)
        return
    for cause in causes:
        match cause:
            case Ends():
                log.warning("process_ends", reason=str(cause))
            case Refusal():
                log.error("process_refused", error=cause.message)
            case _:
                log.error("bus_failed", error=str(cause))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors that exception groups of any depth hold."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


async def _main(settings: ProcessSettings, info: ServiceInfo, build: Build) -> int:
    stopping, closed = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    living = asyncio.create_task(_live(settings, info, build, closed.set), name=info.id)
    ends = [asyncio.create_task(event.wait()) for event in (stopping, closed)]
    await asyncio.wait([living, *ends], return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()
    if not living.done():
        log.info("stopping", reason="asked to" if stopping.is_set() else "the bus closed")
        living.cancel()
        await asyncio.wait([living], timeout=STOP_SECONDS)
    if not living.done():
        log.error("stop_took_too_long", seconds=STOP_SECONDS)
        os._exit(1)  # whatever it hangs in would hang the interpreter's exit as well
    if not living.cancelled():
        living.result()
    return 1 if closed.is_set() else 0


@dataclass
class ProcessState:
    """How far a process is. `bus` and `actor` are None until they are there."""

    bus: Bus | None = None
    actor: Actor | None = None
    is_ending: bool = False

    @property
    def connected(self) -> bool:
        return self.bus is not None and self.bus.connected

    async def why_not_ready(self) -> str | None:
        """Why the process does not serve its role; None where it does."""
        if self.is_ending:
            return "it is ending"
        if not self.connected:
            return "the bus is disconnected"
        return "it is starting" if self.actor is None else await self.actor.why_not_ready()


def show_process(telemetry: Telemetry, info: ServiceInfo, state: ProcessState) -> None:
    """Declare the metrics that every process has: its build, and how it stands with the bus."""
    build = telemetry.gauge("livescale_build_info", "1 for the build that runs", ["service", "version", "python"])
    build.labels(info.name, info.version, platform.python_version()).set(1)
    telemetry.watch_gauge(
        "livescale_bus_connected", "1 while this process has the bus, else 0", [], lambda: {(): float(state.connected)}
    )
    telemetry.watch_counts(
        "livescale_bus_messages_total",
        "Messages of this process by outcome",
        "outcome",
        lambda: {} if state.bus is None else state.bus.counts,
    )


async def _live(settings: ProcessSettings, info: ServiceInfo, build: Build, on_closed: Callable[[], None]) -> None:
    telemetry, clock, state = Telemetry(info.name, info.id), RunningClock(), ProcessState()
    host = settings.host_name or socket.gethostname()
    show_process(telemetry, info, state)
    try:
        bound = listen(settings.system_bind)
        if settings.system_file:
            write_address(Path(settings.system_file), bound)
    except CannotListen as error:
        raise Ends(str(error)) from None
    async with AsyncExitStack() as cleanup:
        # Open before the bus is there, as somebody may want to know what the process waits for.
        await cleanup.enter_async_context(SystemPort(info, telemetry.exposition, state.why_not_ready).serve(bound))
        cleanup.push_async_callback(telemetry.shutdown)
        bus = state.bus = await NatsBus.connect(
            settings.nats_url,
            settings.namespace,
            info.id,
            files=NatsFiles.of(settings),
            timeout=CONNECT_SECONDS,
            on_closed=on_closed,
            clock=clock,
        )
        cleanup.push_async_callback(bus.close)
        world = World(info, host, bus, clock, RandomIds(), telemetry, announced(bound, host))
        log.info("system_port_opened", address=world.system)
        await _serve_metrics(world)
        if info.name == "registry":
            await _keep_events(bus)
        state.actor = build(world)
        # What is here now stays: a collection that looks through all modules, torch's too, takes 0.1 s.
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)
        gc.enable()  # where it was off for the start
        await _run(state.actor, bus, state)


async def _run(actor: Actor, bus: NatsBus, state: ProcessState) -> None:
    """Run the actor. When cancelled, first take no more calls, as they would reach an actor that is ending."""
    running = asyncio.create_task(actor.run(), name="actor")
    try:
        await asyncio.wait([running])
    except asyncio.CancelledError:
        state.is_ending = True
        await bus.drain()
        running.cancel()
    await running


async def _keep_events(bus: NatsBus) -> None:
    try:
        await bus.keep_events()
    except BusError as error:
        log.warning("events_not_kept", error=str(error))


async def _serve_metrics(world: World) -> None:
    async def metrics(message: AskMetrics, context: Context) -> MetricsText:
        return MetricsText(text=world.telemetry.exposition())

    await world.bus.serve(world.info, [Endpoint(METRICS, metrics, {"id": world.info.id}, limit=8)])
