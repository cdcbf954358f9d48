"""The system that a bench measures: one model on this machine's CPUs, started for the bench and scaled by hand."""

import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from livescale.load.bench.samples import BenchFailed, Disturbed
from livescale.load.bench.watch import HOLDERS, Watch, following
from livescale.services.cli.scale import ask_scale
from livescale.services.supervisor.commands import NATS, WORKER_NICE
from livescale.services.supervisor.model_settings import ModelSettings
from livescale.services.supervisor.processes import Echo
from livescale.services.supervisor.settings import StackSettings
from livescale.services.supervisor.stack import Progress, Stack
from livescale.shared.messages.membership import AskMetrics, ServiceName
from livescale.shared.messages.registry import AskModels, AskSnapshot, ModelEntry, Register, Snapshot
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.messages.transfers import LiveMode
from livescale.shared.subjects import METRICS, MODELS, REGISTER, SNAPSHOT

T = TypeVar("T")

MODEL = "bench"
MIB = 1024 * 1024
SCALE_SECONDS = 300.0
CALL_SECONDS = 5.0
# A model that the monitor leaves as it is, so that only the bench scales it.
BY_HAND: Mapping[str, Any] = {"upscale_delay_s": 1e6, "downscale_delay_s": 1e6}
BETWEEN = {"gateway": "gateway-0", "router": "router-0", "bus": NATS}  # processes between client and worker
ONE_INSTANCE: Mapping[str, Any] = {"min_instances": 1, "max_instances": 1}


@dataclass(frozen=True)
class BenchSystem:
    """A system that is up, and what is heard of it."""

    stack: Stack
    watch: Watch

    @property
    def url(self) -> str:
        return self.stack.url

    def pid(self, process: str) -> int:
        """The id of one of its processes, by the name that the supervisor gave it. Raises Disturbed while it does not
        run."""
        pid = self.stack.supervisor.children[process].pid
        if pid is None:
            raise Disturbed(f"{process} does not run")
        return pid

    def between(self) -> dict[str, int]:
        """The ids of the processes between client and worker, by what they are."""
        return {name: self.pid(process) for name, process in BETWEEN.items()}

    async def scale(self, instances: int, live: LiveMode | None = None) -> ScaleRecord:
        """Scale to so many instances, and return the record once all is done. Raises BenchFailed where the scale fails,
        and Disturbed where there were so many already: one was lost, or came back."""
        _, record = await ask_scale(self.stack.bus, MODEL, instances, SCALE_SECONDS, live)
        if record is None:
            raise Disturbed("nothing had to be scaled: the number of instances had changed by itself")
        if record.state != "done":
            raise BenchFailed(f"the scale to {instances} failed: {record.outcome}")
        return record

    async def there_and_back(self, instances: int) -> ScaleRecord:
        """Scale from one instance to so many, and back. Returns the first scale's record. Raises as `scale` does, and
        Disturbed where a process was lost since the system came up."""
        return await self.watch.losses.over(lambda: self._there_and_back(instances))

    async def _there_and_back(self, instances: int) -> ScaleRecord:
        record = await self.scale(instances)
        await self.scale(1)
        return record

    async def allow(self, instances: int) -> None:
        """Let the model have up to so many instances from now on."""
        spec = msgspec.structs.replace((await self._model()).spec, max_instances=instances)
        await self.stack.bus.call(REGISTER, Register(spec=spec), timeout=CALL_SECONDS)

    async def model_bytes(self) -> int:
        return (await self._model()).size_bytes

    async def _model(self) -> ModelEntry:
        return (await self.stack.bus.call(MODELS, AskModels(), timeout=CALL_SECONDS)).models[0]

    async def snapshot(self) -> Snapshot:
        """What the registry knows of members and hosts."""
        return await self.stack.bus.call(SNAPSHOT, AskSnapshot(), timeout=CALL_SECONDS)

    async def metrics(self, worker: str) -> str:
        """What a worker exposes of itself, as text."""
        return (await self.stack.bus.call(METRICS, AskMetrics(), timeout=CALL_SECONDS, id=worker)).text


@dataclass(frozen=True)
class Launcher:
    """Starts systems for a bench. `progress` is told what happens; `echo` takes what their processes print."""

    progress: Progress
    echo: Echo

    @asynccontextmanager
    async def start(
        self,
        checkpoint: Path,
        model: Mapping[str, Any],
        services: Collection[ServiceName] = HOLDERS,
        **options: Any,  # noqa: ANN401 the fields, as the settings have them
    ) -> AsyncIterator[BenchSystem]:
        """A system that serves this checkpoint as `MODEL` as long as the block of code runs. `model` has fields of
        `ModelSettings`, and `options` those of `StackSettings`. The loss of a process of `services` spoils a sample.

        Raises TypeError where there is no such field, and what a Stack raises.
        """
        watch = Watch(services)
        models = (ModelSettings(name=MODEL, path=str(checkpoint), **model),)
        settings = StackSettings(models=models, port=0, device="cpu", **options)
        async with Stack(settings, progress=self.progress, echo=self.echo) as stack, following(stack.bus, watch):
            yield BenchSystem(stack, watch)


class Renewable(Generic[T]):
    """What is there `now`, until `renew` ends it and has another in its place."""

    now: T

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]], cleanup: AsyncExitStack) -> None:
        self._make = make
        self._cleanup = cleanup

    async def renew(self) -> None:
        await self._cleanup.aclose()
        self.now = await self._cleanup.enter_async_context(self._make())


@asynccontextmanager
async def renewable(make: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncIterator[Renewable[T]]:
    """It is made on entry, and ends with the block of code."""
    async with AsyncExitStack() as cleanup:
        made = Renewable(make, cleanup)
        await made.renew()
        yield made


def parameter_bytes(checkpoint: Path) -> int:
    return sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))


def cores() -> tuple[int, int]:
    """Raises BenchFailed where there are not two."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise BenchFailed("this benchmark needs two CPU cores, one for each worker")
    return usable[0], usable[1]


def give_core(pid: int, core: int) -> None:
    """All threads of a worker to one core. Where each session has a group of its own, niceness counts in there only:
    then the group is what comes after the control plane."""
    keep_on_core(pid, core)
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(str(WORKER_NICE))


def keep_on_core(pid: int, core: int) -> None:
    """Keep all threads of a process on one core."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
