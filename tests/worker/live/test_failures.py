"""A worker dies, leaves or gives up in the middle of a live scale."""

from livescale.services.worker.live.source import FAILED_HAND_OFFS
from livescale.shared.messages.membership import Stale
from livescale.shared.subjects import STALE
from tests.worker.live.engines import BLOCKS, CLOCK
from tests.worker.live.live_scale import parked, with_live_scale
from tests.worker.live.pool import WorkerPool
from tests.worker.requests import random_prompt, submit


def test_a_source_that_dies_with_a_request_in_its_hands_leaves_it_to_the_target_with_its_layers() -> None:
    async def act(pool: WorkerPool) -> None:
        await parked(pool)
        await pool.help("s", "t")
        await pool.kill("s")
        await pool.until(lambda: pool.count("t", "returned_tasks") == 1)
        await pool.load("t", list(range(BLOCKS)), "zigzag")
        await pool.until(lambda: pool.ready("t") == BLOCKS)
        assert pool.count("t", "live_layers") == 3  # none was run twice

    with_live_scale(act)


def test_a_target_that_dies_before_its_kv_has_gone_out_has_the_source_compute_it_again() -> None:
    async def act(pool: WorkerPool) -> None:
        await parked(pool)
        pool.faults.message_seconds = 0.1
        await pool.help("s", "t")
        await pool.until(lambda: pool.count("s", "pulled_tasks") == 1)
        pool.faults.message_seconds = 30.0
        await pool.kill("t")
        known = CLOCK.now()
        await pool.until(lambda: pool.count("s", "lost_kv") == 1)
        assert CLOCK.now() - known < 1.0  # and not only when the link gives up

    with_live_scale(act)


def test_a_request_whose_deadline_comes_while_it_is_parked_ends_then() -> None:
    async def act(pool: WorkerPool) -> None:
        await parked(pool, deadline=CLOCK.wall() + 0.5)
        await pool.until(lambda: pool.client.wishes[0].is_over)
        assert pool.client.wishes[0].ends == ["deadline"]
        pool.client.wishes.clear()

    with_live_scale(act)


def test_a_target_that_is_told_to_stop_gives_all_its_requests_back() -> None:
    async def act(pool: WorkerPool) -> None:
        await parked(pool, 3)
        await pool.abort("t")
        await pool.until(lambda: pool.state("t") == "spare")
        assert pool.client.places.keys() <= {"r0~1", "r1~1", "r2~1"}

    with_live_scale(act)


def test_a_source_that_drains_takes_what_it_was_given_and_no_more() -> None:
    async def act(pool: WorkerPool) -> None:
        await parked(pool, 3)
        await pool.help("s", "t")
        await pool.until(lambda: pool.count("s", "pulled_tasks") == 1)
        await pool.drain("s")
        await pool.until(lambda: pool.state("s") == "spare")
        assert pool.count("s", "pulled_tasks") <= 2
        await pool.load("t", list(range(BLOCKS)), "zigzag")

    with_live_scale(act)


def test_sources_and_targets_that_were_declared_dead_forget_everything() -> None:
    for who in ("s", "t"):

        async def act(pool: WorkerPool, who: str = who) -> None:
            await parked(pool, 3)
            await pool.help("s", "t")
            await pool.until(lambda: pool.count("s", "pulled_tasks") == 1)
            pool.bus.publish(STALE, Stale(id=who, epoch=1), id=who)
            await pool.until(lambda: pool.state(who) == "spare")
            pool.client.lost_at(who)
            if who == "s":
                await pool.load("t", list(range(BLOCKS)), "zigzag")

        with_live_scale(act)


def test_a_source_pulls_only_when_nothing_of_its_own_waits_to_be_prefilled() -> None:
    async def act(pool: WorkerPool) -> None:
        await parked(pool)
        for number in range(4):
            await pool.client.submit(submit(f"own{number}", random_prompt(number, 400), max_tokens=4), "s")
        await pool.help("s", "t")
        scheduler = pool.members["s"].worker._serving.scheduler
        assert scheduler is not None
        while pool.count("s", "pulled_tasks") == 0:
            assert not scheduler.wants_more()
            await pool.until(lambda: scheduler.wants_more())
            await pool.until(lambda: pool.count("s", "pulled_tasks") == 1)

    with_live_scale(act)


def test_a_block_that_comes_damaged_is_run_by_nobody_and_the_target_stays_live() -> None:
    async def act(pool: WorkerPool) -> None:
        await pool.load("t", [3], "zigzag", damaged=True)
        await parked(pool)
        await pool.help("s", "t")
        await pool.until(lambda: pool.count("s", "pulled_tasks") == 1)
        assert (pool.state("t"), pool.ready("t")) == ("live", 3)
        await pool.finish_loading("t")

    with_live_scale(act)


def test_a_target_of_which_nothing_arrives_is_left_with_its_requests() -> None:
    async def act(pool: WorkerPool) -> None:
        await parked(pool)
        pool.faults.messages = 0
        await pool.help("s", "t")
        await pool.until(lambda: pool.reports["s"].helping == ["t"])
        await pool.until(lambda: pool.reports["s"].helping == [])
        assert pool.count("t", "returned_tasks") == FAILED_HAND_OFFS
        await pool.finish_loading("t")

    with_live_scale(act)


def test_a_source_helps_on_after_the_bus_was_away() -> None:
    async def act(pool: WorkerPool) -> None:
        await pool.help("s", "t")
        await pool.outage(4.0)
        await pool.client.submit(submit("r", random_prompt(1, 150), max_tokens=6), "t")
        await pool.until(lambda: pool.count("s", "pulled_tasks") == 1)

    with_live_scale(act)


def test_a_target_that_says_nothing_is_left_after_a_while() -> None:
    async def act(pool: WorkerPool) -> None:
        await parked(pool)
        pool.broker.lose = lambda subject: ".pull" in subject
        await pool.help("s", "t")
        await pool.until(lambda: pool.reports["s"].helping == ["t"])
        await pool.until(lambda: pool.reports["s"].helping == [])
        await pool.finish_loading("t")

    with_live_scale(act)
