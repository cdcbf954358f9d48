"""Stages that cannot run a batch, hear of none, or lose a neighbour."""

from tests.worker.live.pool import WorkerPool
from tests.worker.pipeline.pipelines import THREE, form, running, whole


def test_a_link_that_breaks_between_two_stages() -> None:
    async def act(pool: WorkerPool) -> None:
        pool.faults.messages = 3
        await pool.until(lambda: pool.state("a") == "loading")
        pool.faults.messages = None
        assert pool.count("a", "broken_pipelines") == 1
        await form(pool, THREE, "p2")
        await pool.until(lambda: pool.state("a") == "live")
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        await whole(pool, "a", "b", "c")
        for worker in "abc":
            await pool.serve(worker)

    running(act)


def test_an_activation_that_is_damaged_on_its_way_is_computed_by_nobody() -> None:
    async def act(pool: WorkerPool) -> None:
        pool.faults.damaged = 40
        await pool.until(lambda: pool.count("a", "broken_pipelines") == 1)

    running(act)


def test_a_stage_that_hears_of_no_batch_is_given_up_after_a_while() -> None:
    async def act(pool: WorkerPool) -> None:
        pool.members["b"].bus.hold()  # no message arrives
        await pool.until(lambda: pool.state("a") == "loading")
        pool.members["b"].bus.forget()
        await pool.kill("b")

    running(act)
