"""A whole system on one machine: `async with Stack(settings) as stack:` and everything serves inside."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from livescale.services.supervisor.bus_server import start_nats
from livescale.services.supervisor.checks import (
    check_devices,
    check_live,
    check_memory,
    check_models,
    check_system_ports,
    choose_own_form,
    find_ports,
    make_spec,
    resolve_form,
)
from livescale.services.supervisor.commands import (
    NATS,
    bind_system_ports,
    bus_files,
    gateway_commands,
    ready_file,
    service_commands,
)
from livescale.services.supervisor.credentials import OPERATOR, ROLES
from livescale.services.supervisor.forks import ForkServers
from livescale.services.supervisor.loras import adapter_specs, unread_adapters
from livescale.services.supervisor.policy import failed_models, missing_instances, missing_members
from livescale.services.supervisor.processes import Child, Echo, Supervisor
from livescale.services.supervisor.resources import measure_models, place_workers, resolve_memory
from livescale.services.supervisor.run_files import run_directory
from livescale.services.supervisor.settings import StackSettings
from livescale.services.supervisor.watches import LeaseWatch, StoreWatch
from livescale.shared.bus.contract import Bus, BusError, Refusal
from livescale.shared.bus.nats import NatsBus
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import AskSnapshot, ModelEntry, ProcessEnded, Register, Snapshot
from livescale.shared.subjects import PROCESS, REGISTER, SNAPSHOT

POLL_SECONDS = 0.05
CALL_SECONDS = 5.0
CONNECT_SECONDS = 30.0  # long, as a machine may be busy

Progress = Callable[[str], None]


class StackFailed(Exception):
    """The system did not come up. The message says what was missing, and what the processes wrote last."""


class Stack:
    """The bus, the services and the models.

    `urls` (by gateway), `nats_url`, `bus` and `supervisor` are set inside `async with`. `ended` is called with name and
    reason when a process has ended that is started again; by default that is echoed.

    Raises BadSettings before any service was started, ChildFailed and StackFailed while starting.
    """

    urls: dict[str, str]
    nats_url: str
    bus: Bus
    supervisor: Supervisor

    def __init__(self, settings: StackSettings, *, progress: Progress, echo: Echo, ended: Echo | None = None) -> None:
        self._settings = settings
        self._progress = progress
        self._echo = echo
        self._ended = ended or (lambda name, reason: echo(name, f"(supervisor) {reason}"))
        self._cleanup = AsyncExitStack()
        self._is_connected = False

    async def __aenter__(self) -> Self:
        check_devices(self._settings)
        check_live(self._settings)
        self._placement = place_workers(self._settings)
        if self._placement is not None:
            self._settings = msgspec.structs.replace(self._settings, workers=len(self._placement.gpus))
        self._settings = resolve_form(self._settings, *choose_own_form(self._settings, read_proc("cpuinfo")))
        check_models(self._settings)
        self._adapters = adapter_specs(self._settings)
        # Hub ids are asked for over the network.
        sizes = await asyncio.to_thread(measure_models, self._settings)
        self._settings = resolve_memory(self._settings, sizes)
        check_memory(self._settings, read_proc("meminfo"))
        ports = find_ports(self._settings)
        async with AsyncExitStack() as cleanup:
            run_dir = cleanup.enter_context(run_directory())
            await self._start(cleanup, run_dir, ports)
            self._cleanup = cleanup.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._cleanup.aclose()

    @property
    def url(self) -> str:
        """The url of the first gateway, which clients on this machine use."""
        return next(iter(self.urls.values()))

    def memory_bytes(self) -> dict[str, int]:
        """The resident memory of each process by name; pages that several share count in each."""
        found = {name: resident_bytes(pid) for name, pid in self.supervisor.running().items()}
        return {name: size for name, size in found.items() if size is not None}

    async def _start(self, cleanup: AsyncExitStack, run_dir: Path, ports: Sequence[int]) -> None:
        settings = self._settings
        forks = await cleanup.enter_async_context(ForkServers(self._echo))
        supervisor = Supervisor(self._echo, ended=self._tell_end, spawn=forks.spawn)
        self.supervisor = await cleanup.enter_async_context(supervisor)
        # What is started last ends first: streams before the processes that feed them, and the bus last.
        try:
            # The server's files are of this run alone: models of an earlier run do not come back.
            nats_urls = await self._nats_urls(run_dir / "nats")
            self.nats_url = nats_urls[OPERATOR]
            self.bus = await NatsBus.connect(
                self.nats_url, settings.namespace, "supervisor", files=bus_files(settings), timeout=CONNECT_SECONDS
            )
        except BusError as error:
            raise StackFailed(
                f"{error}; without NATS_URL and --nats-url the system starts a server of its own"
            ) from None
        cleanup.push_async_callback(self._disconnect)
        self._is_connected = True
        if settings.nats_url:
            await self._check_alone()
        else:
            store = run_dir / "nats"
            watch_store = StoreWatch(self.bus, store, partial(self.supervisor.restart, NATS), self._progress)
            self._run_beside(cleanup, watch_store.run(), "store watch")
        deadline = asyncio.get_running_loop().time() + settings.start_timeout_s
        if self._placement is not None and settings.shaped:
            # The file lies in the run's directory, as it must not outlive the processes.
            self._placement = replace(self._placement, shaping_file=str(run_dir / "links"))
        services = service_commands(settings, nats_urls, self._placement)
        gateways = gateway_commands(settings, nats_urls, ports, run_dir)
        commands = [*services, *gateways]
        check_system_ports(settings.system_bind, len(commands))
        self.supervisor.start(*bind_system_ports(commands, settings.system_bind))
        if settings.kill_hung_s:
            watch = LeaseWatch(self.bus, self.supervisor, settings.kill_hung_s, self._tell_end)
            self._run_beside(cleanup, watch.run(), "lease watch")
        names = [name for name in self.supervisor.children if name != NATS]
        await self._wait(lambda snapshot: missing_members(snapshot, names), deadline)
        specs = [make_spec(model, settings) for model in settings.models]
        for spec in specs:
            await self._register(spec, deadline)
        await self._wait(lambda snapshot: missing_instances(snapshot, specs), deadline)
        for adapter in self._adapters:
            await self._register(adapter, deadline)
        await self._wait(lambda snapshot: unread_adapters(snapshot, self._adapters), deadline)
        files = {gateway.name: ready_file(run_dir, gateway.name) for gateway in gateways}
        await self._wait(lambda _: [name for name, file in files.items() if not read_url(file)], deadline)
        self.urls = {name: read_url(file) for name, file in files.items()}

    async def _check_alone(self) -> None:
        """Raises StackFailed where another system has the namespace: both would have processes of the same ids, and
        each would end those of the other."""
        snapshot = await self._ask_snapshot()
        if snapshot is not None:
            where = ", ".join(sorted({one.host for one in snapshot.members if one.service == "registry"}))
            raise StackFailed(
                f"another system runs on that NATS server in the namespace {self._settings.namespace!r}, with its "
                f"registry on {where}: choose another --namespace, or end that one"
            )

    async def _disconnect(self) -> None:
        self._is_connected = False
        await self.bus.close()

    def _tell_end(self, name: str, reason: str) -> None:
        """Tell how a process ended: at once to `ended`, and to the registry, which is asked for incidents later."""
        self._ended(name, reason)
        if self._is_connected:
            self.bus.publish(PROCESS, ProcessEnded(id=name, reason=reason, at=time.time()), id=name)

    @staticmethod
    def _run_beside(cleanup: AsyncExitStack, work: Coroutine[None, None, None], name: str) -> None:
        """Run `work` in a task of its own until the system ends."""
        running = asyncio.create_task(work, name=name)

        async def end() -> None:
            running.cancel()
            await asyncio.wait([running])

        cleanup.push_async_callback(end)

    async def _nats_urls(self, store: Path) -> Mapping[str, str]:
        """The url by which each role reaches the bus."""
        if self._settings.nats_url:
            return dict.fromkeys((*ROLES, OPERATOR), self._settings.nats_url)
        return await start_nats(self.supervisor, store, self._settings.namespace)

    async def _wait(self, missing: Callable[[Snapshot], list[str]], deadline: float) -> None:
        """Wait until nothing is missing. Raises StackFailed at the deadline, and for a model that cannot be read."""
        waiting_for = ["the registry"]
        while asyncio.get_running_loop().time() < deadline:
            self.supervisor.check(*waiting_for)
            snapshot = await self._ask_snapshot()
            if snapshot is not None:
                if failed := failed_models(snapshot, {model.name for model in self._settings.models}):
                    raise StackFailed("; ".join(failed))
                now_missing = missing(snapshot)
                if not now_missing:
                    return
                if now_missing != waiting_for:
                    self._progress(f"waiting for {', '.join(now_missing)}")
                waiting_for = now_missing
            await asyncio.sleep(POLL_SECONDS)
        raise StackFailed(
            f"not ready within {self._settings.start_timeout_s:g} s, still waiting for {', '.join(waiting_for)}"
            + "".join(last_words(child) for name, child in self.supervisor.children.items() if name in waiting_for)
        )

    async def _ask_snapshot(self) -> Snapshot | None:
        try:
            return await self.bus.call(SNAPSHOT, AskSnapshot(), timeout=CALL_SECONDS)
        except BusError:
            return None  # the registry is starting; the deadline is the caller's

    async def _register(self, spec: ModelSpec, deadline: float) -> None:
        """Register a model. A hub id is fetched before the answer, so this may take all the time until the deadline."""
        self._progress(f"registering {spec.name} ({spec.dtype}) from {spec.path}")
        try:
            await self._ask_to_register(spec, deadline)
        except Refusal as refusal:
            raise StackFailed(refusal.message) from None
        except BusError as error:
            raise StackFailed(f"model {spec.name} could not be registered: {error}") from None

    async def _ask_to_register(self, spec: ModelSpec, deadline: float) -> ModelEntry:
        """Ask the registry once to register a model. Raises BusError."""
        while True:
            remaining = deadline - asyncio.get_running_loop().time()
            try:
                return await self.bus.call(REGISTER, Register(spec=spec), timeout=remaining)
            except Refusal as refusal:
                if refusal.retry_after_ms is None or remaining < POLL_SECONDS:
                    raise
            # A host that has only just joined can be used once it has reported what it holds.
            await asyncio.sleep(POLL_SECONDS)


def read_proc(name: str) -> str:
    return Path("/proc", name).read_text()


def resident_bytes(pid: int) -> int | None:
    """The resident memory of a process; None where it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return None


def read_url(file: Path) -> str:
    """Where the gateway listens; empty until it has said so."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])["url"]
    except (FileNotFoundError, msgspec.DecodeError):
        return ""


def last_words(child: Child) -> str:
    return f"\n{child.command.name} last said:" + "".join(f"\n  {line}" for line in list(child.last_lines)[-12:])
