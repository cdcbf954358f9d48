"""Workers under test, and what of requests they still have."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from livescale.services.worker.actor import Worker
from livescale.services.worker.engine.contract import Runner
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.simulation.local_bus import LocalBus
from livescale.shared.simulation.processes import Process


@dataclass
class Member:
    worker: Worker
    task: asyncio.Task[None]
    runner: Runner
    bus: LocalBus
    telemetry: Telemetry
    process: Process


def used(member: Member) -> int:
    """KV blocks and requests, and KV of requests that a rank which is led has, or waits for."""
    scheduler = member.worker._serving.scheduler
    return late_kv(member) + (0 if scheduler is None else scheduler.load().kv_blocks_used + len(scheduler.running()))


def late_kv(member: Member) -> int:
    """Requests whose KV a rank that is led has not laid down, or waits for."""
    follower = member.worker._deployment.group._follower
    return 0 if follower is None else len(follower._kv._late) + len(follower._kv._coming)


def moving() -> list[str]:
    """Return what is under way between workers."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith(("hand-off ", "take ", "KV "))]


def check_invariants(members: Iterable[Member]) -> None:
    for member in members:
        deployment, scheduler = member.worker._deployment, member.worker._serving.scheduler
        deployment.lifecycle.check_invariants()
        if scheduler is not None:
            scheduler.check_invariants()
        if deployment.live.target is not None:
            deployment.live.target.queue.check_invariants()
