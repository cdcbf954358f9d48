"""What goes wrong between prefill and decode: each request ends once, with its tokens, and no block is kept."""

import asyncio

import pytest
from msgspec.structs import replace

from livescale.services.worker.disaggregation.prefill import LATE_SECONDS
from livescale.services.worker.disaggregation.wire import DATA, HEADER
from livescale.shared.bus.calls import NO_CONTEXT
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.disaggregation import ReleaseKv
from tests.worker.disaggregation.pairs import (
    COMPUTING,
    ask,
    by_turns,
    failed,
    reserved,
    scheduler_of,
    slow_link,
    taken,
    with_pair,
)
from tests.worker.live.engines import CLOCK, EngineKind
from tests.worker.live.members import used
from tests.worker.live.pool import BUS_SECONDS, WorkerPool
from tests.worker.requests import random_prompt, submit

LONG = 400  # tokens of a prompt that takes several steps


async def sampled(pool: WorkerPool) -> None:
    """Wait for the first token."""
    await pool.until(lambda: all(wish.tokens for wish in pool.client.wishes))


@COMPUTING
def test_a_decode_worker_that_dies_before_the_take_over_leaves_the_request_where_it_is(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool)
        await ask(pool)
        await sampled(pool)
        await pool.kill("d")
        assert failed(pool, "broken") > 0
        await pool.until(lambda: pool.client.wishes[0].is_over)
        assert pool.client.wishes[0].submissions == 0  # nobody had to send it again

    with_pair(act, kind=kind)


def test_a_decode_worker_that_died_stays_so_whatever_it_had_reserved_before() -> None:
    """Else a worker would tell it for ever that it gives up what it asked for in vain."""

    async def act(pool: WorkerPool) -> None:
        slow_link(pool)
        await ask(pool)
        prefill = pool.members["p"].worker._deployment.disaggregation.prefill
        await pool.until(lambda: any(one.is_reserved for one in prefill._outgoing.values()))
        prefill.lost("d")
        await pool.until(lambda: not len(prefill))
        assert prefill._dead == {"d"}

    with_pair(act)


@COMPUTING
def test_a_decode_worker_that_dies_after_the_take_over_loses_the_request_to_others(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, tokens=40)
        await pool.until(lambda: len(pool.client.moves) == 1)
        await pool.kill("d")
        await pool.until(lambda: pool.client.wishes[0].is_over)
        assert pool.client.wishes[0].submissions == 1

    with_pair(act, kind=kind)


@COMPUTING
def test_a_prefill_worker_that_dies_in_mid_transfer_leaves_no_block_at_the_decode_worker(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool)
        await ask(pool, 2)
        await pool.until(lambda: reserved(pool) == 2)
        await pool.kill("p")
        known = CLOCK.now()
        await pool.until(lambda: reserved(pool) == 0)
        assert CLOCK.now() - known < 1.0

    with_pair(act, kind=kind)


@COMPUTING
@pytest.mark.parametrize("part", [HEADER, DATA])
def test_a_piece_that_comes_damaged_is_not_laid_down_and_all_is_sent_again(part: int, kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        pool.faults.damaged = part
        await ask(pool)
        await pool.until(lambda: taken(pool) == 1)
        assert failed(pool, "broken") == 1

    with_pair(act, kind=kind)


@COMPUTING
def test_a_link_that_breaks_is_tried_again_once_the_prompt_is_computed(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        pool.faults.messages = 1
        await ask(pool, length=LONG)
        await pool.until(lambda: failed(pool, "broken") == 1)
        pool.faults.messages = None
        await pool.until(lambda: taken(pool) == 1)

    with_pair(act, kind=kind)


@COMPUTING
def test_a_transfer_that_is_late_leaves_the_request_where_it_is(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool, 4 * LATE_SECONDS)
        await ask(pool)
        await sampled(pool)
        began = CLOCK.now()
        await pool.until(lambda: failed(pool, "late") == 1)
        assert LATE_SECONDS - 0.1 <= CLOCK.now() - began <= LATE_SECONDS + 0.5
        await pool.until(lambda: pool.client.wishes[0].is_over)
        assert pool.client.places == {}
        assert reserved(pool) == 0

    with_pair(act, kind=kind)


@by_turns("lost", ".reserve", ".take-over", ".release-kv")
def test_messages_that_are_lost_cost_time_and_nothing_else(lost: str, kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        pool.broker.lose = lambda subject: subject.endswith(lost)
        await ask(pool, 2)
        await asyncio.sleep(1.5)
        pool.broker.lose = lambda subject: False

    with_pair(act, kind=kind)


@COMPUTING
def test_an_answer_that_is_lost_leaves_the_request_to_one_of_them_with_its_tokens(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        lost: list[str] = []

        def once(subject: str) -> tuple[float, ...]:
            if subject.startswith("answer.") and subject.endswith(".take-over") and not lost:
                lost.append(subject)
                return ()
            return (BUS_SECONDS,)

        pool.broker.delays = once
        await ask(pool, tokens=300)
        await pool.until(lambda: bool(lost))
        assert len(scheduler_of(pool, "d").running()) == 1
        await pool.until(lambda: taken(pool) == 1)
        assert not scheduler_of(pool, "p").running()

    with_pair(act, kind=kind)


@COMPUTING
def test_answers_that_are_all_lost_leave_the_request_where_both_make_the_same_tokens(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        pool.broker.delays = lambda subject: () if subject.endswith(".take-over") else (BUS_SECONDS,)
        await ask(pool, tokens=100)
        await pool.until(lambda: failed(pool, "late") == 1)

    with_pair(act, kind=kind)


MOMENTS = [0.0, 0.002, 0.01, 0.02, 0.03, 0.033, 0.036, 0.04, 0.05, 0.08]


@by_turns("moment", *MOMENTS)
def test_a_request_that_is_cancelled_at_any_moment_leaves_both_workers_within_a_second(
    moment: float, kind: EngineKind
) -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, tokens=100)
        await asyncio.sleep(moment)
        pool.client.cancel(pool.client.wishes[0])
        await asyncio.sleep(1.0)
        assert [used(pool.members[worker]) for worker in ("p", "d")] == [0, 0]

    with_pair(act, kind=kind)


@COMPUTING
def test_a_request_that_is_cancelled_while_its_kv_is_on_a_slow_link_leaves_both_within_a_second(
    kind: EngineKind,
) -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool, 5.0)
        await ask(pool)
        await sampled(pool)
        pool.client.cancel(pool.client.wishes[0])
        await asyncio.sleep(1.0)
        assert [used(pool.members[worker]) for worker in ("p", "d")] == [0, 0]
        slow_link(pool, 0.003)

    with_pair(act, kind=kind)


@COMPUTING
def test_a_decode_worker_that_is_full_refuses_and_the_request_is_decoded_where_it_is(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        for number in range(4):  # as many as run at once
            own = submit(f"own{number}", random_prompt(number, 40), max_tokens=150)
            await pool.client.submit(own, "d")
        await ask(pool)
        await pool.until(lambda: failed(pool, "refused") >= 2)  # it was asked again once it was ready
        await pool.until(lambda: pool.client.wishes[-1].is_over)
        assert taken(pool) == 0

    with_pair(act, kind=kind)


@COMPUTING
def test_a_reservation_that_gave_way_is_asked_for_again_once_the_request_is_ready(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, length=LONG)
        await pool.until(lambda: reserved(pool) == 1)
        assert pool.client.wishes[0].tokens == []
        scheduler_of(pool, "d").reservations.make_way("a request that is ready needs its place")
        await pool.until(lambda: reserved(pool) == 0)
        await pool.until(lambda: taken(pool) == 1)
        assert failed(pool, "broken") == 1

    with_pair(act, kind=kind)


@pytest.mark.parametrize("ends", ["released", "taken"])
def test_blocks_that_are_asked_for_after_the_transfer_is_over_are_not_kept(ends: str) -> None:
    async def act(pool: WorkerPool) -> None:
        slow_link(pool, 0.05)
        await ask(pool)
        await pool.until(lambda: reserved(pool) == 1)
        side = pool.members["d"].worker._deployment.disaggregation.decode
        [asked] = [one.asked for one in side._incoming.values()]
        if ends == "released":  # which another one is, before it was asked for: a message may overtake another
            asked = replace(asked, ticket=asked.ticket + 1)
            over = ReleaseKv(prefill="p", ticket=asked.ticket, request_id=asked.request.request_id, reason="it ended")
            await side.release(over, NO_CONTEXT)
        await pool.until(lambda: taken(pool) == 1)
        with pytest.raises(Refusal, match="is over") as refused:
            await side.reserve(asked, NO_CONTEXT)
        assert refused.value.code == 409
        assert reserved(pool) == 0
        await pool.until(lambda: pool.client.wishes[0].is_over)

    with_pair(act)
