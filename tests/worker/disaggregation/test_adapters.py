"""Requests with adapters that one worker prefills and another decodes, and those that move from a worker that drains,
have the tokens and log-probabilities of one worker alone."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.worker.disaggregation.pairs import counted, move, taken, with_pair
from tests.worker.live.adapted import KINDS, AdaptedKind, hosts_of
from tests.worker.live.pool import WorkerPool
from tests.worker.requests import penalised, random_prompt, submit

EACH = pytest.mark.parametrize("kind", KINDS, ids=["float32", "bfloat16"])
RESIDENT = pytest.mark.parametrize("resident", [(), ("p",), ("d",), ("p", "d")], ids=str)


async def ask(pool: WorkerPool, tokens: int = 12, decode: str | None = "d") -> None:
    """Submit a request for each adapter, and one for none, to p."""
    assert isinstance(pool.kind, AdaptedKind)
    for number in range(3):
        prompt, sampling = random_prompt(number, 200), penalised(number)
        request = submit(f"r{number}", prompt, max_tokens=tokens, sampling=sampling, adapter=pool.kind.use(number))
        await pool.client.submit(request, "p", decode=decode)


@EACH
@RESIDENT
def test_requests_that_are_prefilled_elsewhere_have_the_same_bits(kind: AdaptedKind, resident: Sequence[str]) -> None:
    async def act(pool: WorkerPool) -> None:
        hosts = await hosts_of(pool, resident)
        await ask(pool)
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert taken(pool) == 3
        assert len(hosts.orders) == 2 * (2 - len(resident))

    with_pair(act, kind=kind)


@EACH
@RESIDENT
def test_requests_that_move_have_the_same_bits(kind: AdaptedKind, resident: Sequence[str]) -> None:
    async def act(pool: WorkerPool) -> None:
        hosts = await hosts_of(pool, resident)
        await ask(pool, 60, decode=None)
        await pool.until(lambda: all(len(wish.tokens) > 3 for wish in pool.client.wishes))
        assert await asyncio.gather(*(move(pool, f"r{number}") for number in range(3))) == [None] * 3
        assert counted(pool, "p", "moves_total") == 3
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert [wish.submissions for wish in pool.client.wishes] == [0, 0, 0]
        assert len(hosts.orders) == 2 * (2 - len(resident))

    with_pair(act, kind=kind)


@EACH
def test_a_host_that_dies_as_it_sends_to_the_one_that_decodes_costs_another_try(kind: AdaptedKind) -> None:
    async def act(pool: WorkerPool) -> None:
        hosts = await hosts_of(pool, ("p",))
        hosts.open.clear()
        await ask(pool)
        await hosts.kill(await hosts.ordered(2))
        hosts.open.set()
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert taken(pool) == 3
        assert len(hosts.orders) == 3

    with_pair(act, kind=kind)
