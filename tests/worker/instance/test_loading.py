"""Blocks on their way into a worker: in whatever order, and damaged."""

from livescale.shared.messages.transfers import Inflow
from livescale.shared.subjects import LOAD
from tests.worker.fleet import fleet, undisturbed
from tests.worker.serving import random_prompt, submit


async def test_blocks_are_laid_out_in_whatever_order_they_come() -> None:
    async with fleet("w-1") as made:
        others = list(range(1, len(made.memory)))
        first, second = (
            Inflow(ticket=ticket, upstream=made.me, blocks=blocks) for ticket, blocks in [(7, others), (8, [0])]
        )
        await made.bus.call(LOAD, made.command("w-1", first), timeout=5, id="w-1")
        made.feed("w-1")
        await made.until(lambda: (holding := made.reports["w-1"].holding) is not None and holding.ready == others)
        assert made.state("w-1") == "loading"
        await made.bus.call(LOAD, made.command("w-1", second), timeout=5, id="w-1")
        made.feed("w-1", ticket=8)
        await made.whole("w-1")
        await made.serve("w-1")
        await made.admit("w-1", submit("a", random_prompt(1, 40), max_tokens=24))
        assert await made.finished("a") == undisturbed(made, a=1)["a"]


async def test_a_block_that_comes_damaged_is_fetched_again_and_nothing_else_is() -> None:
    async with fleet("w-1") as made:
        made.memory[2][5] ^= 1
        await made.load("w-1", made.me)
        made.feed("w-1")
        await made.until(lambda: any(transfer.state == "broken" for transfer in made.transfers))
        broken = next(transfer for transfer in made.transfers if transfer.state == "broken")
        assert (broken.ticket, "block 2" in (broken.error or "")) == (7, True)
        assert made.state("w-1") == "loading"
        made.memory[2][5] ^= 1
        await made.load("w-1", made.me, ticket=8)
        made.feed("w-1", ticket=8)
        await made.whole("w-1")
        received = next(transfer for transfer in made.transfers if transfer.state == "whole").received_bytes
        # The damaged block came twice; what was under way when it was found may have come or not.
        assert received == made.manifest.size_bytes + made.manifest.blocks[2].size_bytes
        await made.serve("w-1")
        await made.admit("w-1", submit("a", random_prompt(1, 40), max_tokens=24))
        assert await made.finished("a") == undisturbed(made, a=1)["a"]


async def test_a_block_that_comes_damaged_twice_is_told_and_the_worker_is_spare_again() -> None:
    async with fleet("w-1") as made:
        made.memory[2][5] ^= 1
        await made.load("w-1", made.me)
        made.feed("w-1")
        await made.until(lambda: any(transfer.state == "broken" for transfer in made.transfers))
        await made.load("w-1", made.me, ticket=8)
        made.feed("w-1", ticket=8)
        await made.until(lambda: any(transfer.state == "failed" for transfer in made.transfers))
        error = next(transfer.error for transfer in made.transfers if transfer.state == "failed")
        assert error is not None
        assert "block 2" in error
        await made.until(lambda: made.state("w-1") == "spare")


async def test_an_earlier_load_that_comes_again_ends_no_flow_of_a_later_one() -> None:
    async with fleet("w-1") as made:
        for ticket in (7, 8, 7):
            await made.load("w-1", made.me, ticket=ticket)
        made.feed("w-1", ticket=8)
        await made.whole("w-1")
