"""Measures what a KV cache that keeps prompts saves a prompt that comes again."""

from dataclasses import replace

from livescale.load.engine_alone import EngineAlone, running
from livescale.load.peers.engine_process import Stopwatch
from livescale.load.peers.protocol import Kept, StepSeconds
from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.messages.requests import Submit

NEVER = 4e9


async def measure_kept(runner: Runner, limits: SchedulerLimits, prompt: list[int]) -> Kept:
    """The prompt, and the same again, in a KV cache that has room for what is kept, and in one that has none."""
    none, cached = await _ask_twice(runner, replace(limits, host_kv_blocks=0), prompt)
    _, fetched = await _ask_twice(runner, replace(limits, kv_blocks=limits.blocks(len(prompt) + 1)), prompt)
    return Kept(none, cached, fetched)


async def _ask_twice(runner: Runner, limits: SchedulerLimits, prompt: list[int]) -> list[StepSeconds]:
    """Send the prompt twice, one after the other, and measure the time to the first token of each."""
    scheduler = Scheduler(limits)
    scheduler.keep_prefixes()
    took = []
    async with running(EngineAlone(runner, scheduler)) as engine:
        for name in ("first", "again"):
            request = Submit(
                request_id=name, model="bench", gateway="none", prompt=prompt, max_tokens=1, deadline=NEVER
            )
            watch = Stopwatch()
            await engine.ask(request)
            watch.mark()
            took.append(watch.took())
    return took
