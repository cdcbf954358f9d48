"""Workers that drain, start again, were away or get another role while KV is on its way: nothing is lost or kept."""

import asyncio

import pytest

from livescale.shared.messages.disaggregation import ChangeRole
from livescale.shared.messages.membership import Stale
from livescale.shared.subjects import CHANGE_ROLE, STALE
from tests.worker.disaggregation.pairs import (
    COMPUTING,
    ask,
    by_turns,
    counted,
    failed,
    reserved,
    slow_link,
    taken,
    with_pair,
)
from tests.worker.live.engines import EngineKind
from tests.worker.live.pool import WorkerPool
from tests.worker.requests import random_prompt, submit

LONG = 400  # tokens of a prompt that takes several steps


async def sending(pool: WorkerPool) -> None:
    """Wait until KV of a request is on its way."""
    await pool.until(lambda: counted(pool, "p", "transfer_bytes_total") > 0 or reserved(pool) > 0)
    assert taken(pool) == 0


@COMPUTING
def test_a_prefill_worker_that_drains_hands_everything_over_first(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool, 0.05)
        await ask(pool, 3, length=LONG)
        await sending(pool)
        await pool.drain("p")
        await pool.until(lambda: pool.state("p") == "spare")
        assert taken(pool) == 3

    with_pair(act, kind=kind)


@COMPUTING
def test_a_decode_worker_that_drains_takes_what_it_keeps_blocks_for_and_no_more(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool, 0.05)
        await ask(pool)
        await pool.until(lambda: reserved(pool) == 1)
        await pool.drain("d")
        await pool.client.submit(submit("later", random_prompt(9, 100), max_tokens=3), "p", decode="d")
        await pool.until(lambda: pool.state("d") == "spare")
        assert taken(pool) == 1
        await pool.until(lambda: failed(pool, "refused") == 1)

    with_pair(act, kind=kind)


@COMPUTING
def test_requests_end_with_their_tokens_though_the_bus_is_away_for_a_while(kind: EngineKind) -> None:
    for moment in (0.01, 0.034, 0.06):

        async def act(pool: WorkerPool, moment: float = moment) -> None:
            await ask(pool, 2, tokens=60)
            await asyncio.sleep(moment)
            await pool.outage(2.0)

        with_pair(act, kind=kind)


@pytest.mark.parametrize("who", ["p", "d"])
@by_turns("moment", 0.01, 0.034, 0.06)
def test_a_worker_that_was_declared_dead_forgets_everything(who: str, moment: float, kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 2, tokens=60)
        await asyncio.sleep(moment)
        pool.fence(who)
        await pool.until(lambda: pool.state(who) == "spare")
        await asyncio.sleep(0.2)

    with_pair(act, "other", kind=kind)


@COMPUTING
@pytest.mark.parametrize("who", ["p", "d"])
def test_a_worker_that_was_stopped_goes_on_where_it_was(who: str, kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 2, tokens=60)
        await asyncio.sleep(0.034)
        await pool.freeze(3.0, who)

    with_pair(act, kind=kind)


@COMPUTING
def test_a_request_of_the_same_id_that_is_admitted_at_the_decode_worker_is_its_own(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool, 0.1)
        await ask(pool, tokens=40)
        await pool.until(lambda: reserved(pool) == 1)
        await pool.client._admitted(pool.client.wishes[0], "d")  # as a router does that had no answer of p's
        await pool.until(lambda: pool.client.wishes[0].is_over)

    with_pair(act, kind=kind)


@COMPUTING
def test_a_stale_epoch_is_joined_again_with_nothing_kept(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool, 0.1)
        await ask(pool, 2)
        await pool.until(lambda: reserved(pool) == 2)
        pool.bus.publish(STALE, Stale(id="d", epoch=1), id="d")
        await pool.until(lambda: pool.state("d") == "spare")

    with_pair(act, kind=kind)


@COMPUTING
def test_a_prefill_worker_that_is_started_again_is_not_taken_for_what_it_was(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 2)
        await pool.until(lambda: len(pool.client.moves) == 2)
        slow_link(pool)
        await ask(pool, 2, first=2)
        await pool.until(lambda: reserved(pool) == 2)
        await pool.kill("p")
        slow_link(pool, 0.003)
        pool.faults.gone.clear()
        pool.aborted.clear()
        await pool.start("p")
        await pool.loaded("p")
        await ask(pool, 2, first=4)
        await pool.until(lambda: taken(pool) == 2)

    with_pair(act, kind=kind)


@COMPUTING
def test_a_role_that_changes_while_kv_is_on_its_way_changes_nothing_of_that(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool, 0.05)
        await ask(pool, 2)
        await pool.until(lambda: reserved(pool) == 2)
        for worker, role in (("p", "decode"), ("d", "prefill")):
            order = ChangeRole(instance=f"m-{worker}", role=role, epoch=1)  # type: ignore[arg-type]
            await pool.bus.call(CHANGE_ROLE, order, timeout=1, id=worker)
        await pool.until(lambda: (pool.reports["p"].role, pool.reports["d"].role) == ("decode", "prefill"))
        await pool.until(lambda: taken(pool) == 2)
        assert [pool.state(worker) for worker in ("p", "d")] == ["serving", "serving"]

    with_pair(act, kind=kind)
