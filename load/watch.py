"""Watches a running system while a load runs: the bus's events feed the story, and the processes are checked for
deaths, restarts and stalls of the whole machine."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from livescale.load.incidents import TICK_SECONDS, ClockTimes, Life, Lives, RunIncident, Ticks
from livescale.load.story import Story
from livescale.services.supervisor.processes import Child
from livescale.shared.bus.contract import Bus, Subscription, Topic
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.message import Message
from livescale.shared.messages.scaling import AskScales, Decision
from livescale.shared.messages.transfers import InstanceServing, Transfer
from livescale.shared.runtime.clock import Clock
from livescale.shared.subjects import BLOCK, DECISION, HEARTBEAT, INSTANCE, LEASE, MOVED, PLAN, SCALES, TRANSFER

TOPICS: tuple[Topic[Any], ...] = (HEARTBEAT, DECISION, PLAN, BLOCK, TRANSFER, INSTANCE, MOVED, LEASE)
CALL_SECONDS = 5.0


@asynccontextmanager
async def watching(bus: Bus, story: Story, clock: Clock, note: Callable[[str], None]) -> AsyncIterator[None]:
    """Inside, `story` hears of every event; `note` gets a line for those that a person wants to read."""
    subscriptions = [await bus.subscribe(topic) for topic in TOPICS]

    async def follow(subscription: Subscription[Any]) -> None:
        async for received in subscription:
            story.on_message(received.message, clock.wall())
            if line := describe(received.message):
                note(line)

    followers = [asyncio.create_task(follow(subscription)) for subscription in subscriptions]
    try:
        yield
    finally:
        for subscription in subscriptions:
            await subscription.close()
        # Not a TaskGroup: what goes wrong inside reaches the caller as it is.
        await asyncio.gather(*followers)


async def complete_story(bus: Bus, story: Story, model: str, clock: Clock) -> None:
    """Ask the planner for its records, which say it all even where an event was lost."""
    answer = await bus.call(SCALES, AskScales(model=model, limit=1_000), timeout=CALL_SECONDS)
    for record in answer.records:
        story.on_message(record, clock.wall())


def describe(message: Message) -> str | None:
    """One line for an event that a person wants to read."""
    match message:
        case Decision(action="out" | "in"):
            return f"decision: {message.current} -> {message.target} instances, because {message.reason}"
        case Transfer(state="whole"):
            return f"{message.node}: parameters whole ({message.how})"
        case Transfer(state="failed"):
            return f"{message.node}: transfer failed: {message.error}"
        case InstanceServing(what="first_layer"):
            return f"{message.worker}: live, ran its first layer"
        case InstanceServing(what="serving"):
            return f"{message.worker}: serves"
        case InstanceServing(what="first_token"):
            return f"{message.worker}: first token"
        case InstanceServing(what="spare"):
            return f"{message.worker}: drained, spare again"
        case LeaseChanged(state="dead"):
            return f"{message.id} counts as dead: {message.reason}"
        case _:
            return None


@asynccontextmanager
async def watching_lives(
    children: Mapping[str, Child], clock: Clock, note: Callable[[str], None]
) -> AsyncIterator[list[RunIncident]]:
    """Inside, the list fills with what befalls them, and `note` gets a line for each."""
    incidents: list[RunIncident] = []
    watching = asyncio.create_task(watch(children, clock, note, incidents), name="watchman")
    try:
        yield incidents
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def watch(
    children: Mapping[str, Child], clock: Clock, note: Callable[[str], None], incidents: list[RunIncident]
) -> None:
    ticks, lives = Ticks(read_times(clock)), Lives(read_lives(children))
    while True:
        await asyncio.sleep(TICK_SECONDS)
        times = read_times(clock)
        stall = ticks.on_tick(times)
        for incident in [*([] if stall is None else [stall]), *lives.on_look(read_lives(children), times.wall)]:
            incidents.append(incident)
            note(incident.line)


def read_times(clock: Clock) -> ClockTimes:
    return ClockTimes(clock.now(), clock.wall())


def read_lives(children: Mapping[str, Child]) -> dict[str, Life]:
    return {name: Life(child.pid, child.starts) for name, child in children.items()}


def end_on_sigterm() -> None:
    """Have SIGTERM cancel the task that calls this, as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
