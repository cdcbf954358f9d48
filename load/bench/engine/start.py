"""How long a spare worker takes to start, in a system that serves no model."""

import asyncio
from collections.abc import Awaitable, Callable
from statistics import median

from livescale.load.bench.engine.processes import EngineProcessFailed
from livescale.load.bench.system import Launcher
from livescale.services.supervisor.settings import StackSettings
from livescale.services.supervisor.stack import Stack
from livescale.shared.messages.registry import AskSnapshot
from livescale.shared.runtime.clock import Clock, SystemClock
from livescale.shared.subjects import SNAPSHOT

WORKER = "worker-0"
POLL_SECONDS = 0.01
START_SECONDS = 60.0


async def spare_seconds(launcher: Launcher, repeats: int) -> float:
    """The median of a worker that is started again and again. Raises EngineProcessFailed, and as Stack does."""
    settings = StackSettings(workers=1, port=0, device="cpu")
    async with Stack(settings, progress=launcher.progress, echo=launcher.echo) as stack:
        return median([await restarted(stack) for _ in range(repeats)])


async def restarted(stack: Stack) -> float:
    """It joins once its memory is there and others can reach it."""
    worker, clock = stack.supervisor.children[WORKER], SystemClock()
    pid = worker.pid

    async def is_started() -> bool:
        return worker.pid != pid

    async def has_joined() -> bool:
        snapshot = await stack.bus.call(SNAPSHOT, AskSnapshot(), timeout=START_SECONDS)
        return any(member.pid == worker.pid and member.lease == "alive" for member in snapshot.members)

    stack.supervisor.restart(WORKER)
    await until(is_started, clock)
    began = clock.now()
    await until(has_joined, clock)
    return clock.now() - began


async def until(happened: Callable[[], Awaitable[bool]], clock: Clock) -> None:
    """Raises EngineProcessFailed where it takes too long."""
    deadline = clock.now() + START_SECONDS
    while clock.now() < deadline:
        if await happened():
            return
        await asyncio.sleep(POLL_SECONDS)
    raise EngineProcessFailed(f"{WORKER} did not join within {START_SECONDS:g} s")
