"""Where tests of a live scale begin: a source that serves, and a target that has two layers."""

from collections.abc import Awaitable, Callable

from livescale.shared.simulation.virtual_time import run
from tests.worker.live.stage import Stage, stage
from tests.worker.serving import random_prompt, submit


def play(act: Callable[[Stage], Awaitable[None]], *others: str) -> None:
    """A source that serves, others that do too, and a target that has two layers."""

    async def whole() -> None:
        async with stage("s", "t", *others) as made:
            for worker in ("s", *others):
                await made.loaded(worker)
            await made.load("t", [0, 1, 2], "zigzag")
            await made.until(lambda: made.state("t") == "live")
            await act(made)
            await made.done()

    run(whole(), limit_seconds=600)


async def parked(made: Stage, count: int = 1, **fields: float) -> None:
    """So many requests have run through the target's two layers."""
    before = made.count("t", "live_layers")
    for number in range(count):
        await made.client.submit(submit(f"r{number}", random_prompt(number, 150), max_tokens=6, **fields), "t")
    await made.until(lambda: made.count("t", "live_layers") == before + 2 * count)
