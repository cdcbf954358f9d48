"""The system that is disturbed: what runs in it, which processes may be hit, and how its gateways are reached.

It is also judged here: whether it is whole again, what it leaves at its end, and what its logs tell.
"""

import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Container, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp

from livescale.load.amiss import find_amiss
from livescale.load.chaos.load import ChaosSettings
from livescale.load.chaos.schedule import FaultTargets
from livescale.load.client import open_session
from livescale.load.story import QueuePoint
from livescale.services.supervisor.commands import NATS
from livescale.services.supervisor.model_settings import Bounds, ModelSettings
from livescale.services.supervisor.processes import Echo
from livescale.services.supervisor.settings import StackSettings
from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.registry import AskSnapshot
from livescale.shared.subjects import SNAPSHOT

MODEL = "chaos"
MIB = 1024 * 1024
REQUEST_SECONDS = 180.0
CALL_SECONDS = 2.0
# Links are slow enough that a process can die while parameters are sent.
LOAD_SECONDS = 1.5
# A few requests at an instance ask for another one, whatever the machine can do.
BOUNDS = Bounds(decode_lo=0.2, decode_hi=0.3)
DOWNSCALE_SECONDS = 3.0
SHARED_MEMORY = Path("/dev/shm")
RESUMED = "request_lost"
TOOK_OFFICE = "router_takes_office"
HANDED_OVER = "request_taken"


def stack_settings(settings: ChaosSettings, checkpoint: Path) -> StackSettings:
    parameters = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
    model = ModelSettings(name=MODEL, path=str(checkpoint), bounds=BOUNDS, downscale_delay_s=DOWNSCALE_SECONDS)
    return StackSettings(
        models=(model,),
        workers=settings.workers,
        gateways=settings.gateways,
        routers=settings.routers,
        port=0,
        device="cpu",  # as the undisturbed engine that every token is compared with
        dtype=settings.dtype,
        arena_bytes=2 * parameters + 16 * MIB,
        kv_bytes=128 * MIB,
        transport=settings.transport,
        link_rate=parameters / LOAD_SECONDS,
        live=settings.live,
        live_every_hop=settings.live_every_hop,
        live_when=settings.live_when,
        ttft_slo=settings.ttft_slo,
        disaggregation=settings.disaggregation,
    )


def choose_targets(settings: ChaosSettings) -> FaultTargets:
    """Processes of the services that may be disturbed. Raises ValueError for a service that there is none of."""
    several = {"worker": settings.workers, "gateway": settings.gateways, "router": settings.routers}
    named = {service: [f"{service}-{index}" for index in range(count)] for service, count in several.items()}
    named |= {service: [f"{service}-0"] for service in ("registry", "planner", "monitor", "host")}
    named[NATS] = [NATS]
    chosen = settings.disturb.split(",")
    for service in chosen:
        if service not in named:
            raise ValueError(f"--disturb: there is no service {service!r}; choose from: {', '.join(named)}")
    others = [name for service in chosen if service != "worker" for name in named[service]]
    return FaultTargets(named["worker"] if "worker" in chosen else [], others, settings.workers)


@asynccontextmanager
async def open_sessions(urls: Mapping[str, str]) -> AsyncIterator[dict[str, aiohttp.ClientSession]]:
    """A session for each gateway, by its name."""
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(open_session(url, "", REQUEST_SECONDS)) for name, url in urls.items()
        }


async def ask_amiss(bus: Bus, queue: QueuePoint | None, children: Iterable[str]) -> list[str]:
    """As `find_amiss`, of what the registry says now. The bus's own server is no member of it."""
    try:
        snapshot = await bus.call(SNAPSHOT, AskSnapshot(), timeout=CALL_SECONDS)
    except BusError as error:
        return [f"the registry does not answer: {error}"]
    return find_amiss(snapshot, queue, [name for name in children if name != NATS])


def shared_memory() -> set[str]:
    """The names of all files in /dev/shm, where shared memory lies."""
    return {path.name for path in SHARED_MEMORY.iterdir()}


def find_left(pids: Iterable[int], memory_before: set[str]) -> list[str]:
    """What is left of a system of this process after its end, one line each. `pids` were its processes', each the
    leader of a session."""
    directories = Path(tempfile.gettempdir()).glob(f"livescale-{os.getpid()}-*")
    return [
        *(f"process {pid}" for pid in processes_of(set(pids))),
        *(f"directory {path}" for path in sorted(directories)),
        # Other programs make and remove such memory too: only memory that no process has open counts as left behind.
        *(f"shared memory {name}" for name in sorted(shared_memory() - memory_before - mapped())),
    ]


def processes_of(sessions: set[int]) -> list[int]:
    return [pid for pid in all_pids() if session_of(pid) in sessions]


def all_pids() -> list[int]:
    return sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def mapped() -> set[str]:
    """Names in /dev/shm that some process has mapped, as far as this user may see."""
    prefix = f"{SHARED_MEMORY}/"
    found: set[str] = set()
    for pid in all_pids():
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue
        found |= {line.partition(prefix)[2] for line in lines if prefix in line}
    return found


class LogEvents:
    """`echo` passes lines on to `log`, and counts the `events` in them."""

    def __init__(self, log: Echo, events: Container[str] = (RESUMED, TOOK_OFFICE, HANDED_OVER)) -> None:
        self._log = log
        self._events = events
        self.counts: Counter[str] = Counter()

    def echo(self, name: str, line: str) -> None:
        self.counts.update(word for word in line.split() if word in self._events)
        self._log(name, line)
