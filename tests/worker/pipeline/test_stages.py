"""Stages that cannot run a batch, hear of none, or lose a neighbour."""

from tests.worker.live.stage import Stage
from tests.worker.pipeline.line import THREE, form, running, whole


def test_a_link_that_breaks_between_two_stages() -> None:
    async def act(made: Stage) -> None:
        made.faults.messages = 3
        await made.until(lambda: made.state("a") == "loading")
        made.faults.messages = None
        assert made.count("a", "broken_pipelines") == 1
        await form(made, THREE, "p2")
        await made.until(lambda: made.state("a") == "live")
        await made.until(lambda: all(wish.is_over for wish in made.client.wishes))
        await whole(made, "a", "b", "c")
        for worker in "abc":
            await made.serve(worker)

    running(act)


def test_an_activation_that_is_damaged_on_its_way_is_computed_by_nobody() -> None:
    async def act(made: Stage) -> None:
        made.faults.damaged = 40
        await made.until(lambda: made.count("a", "broken_pipelines") == 1)

    running(act)


def test_a_stage_that_hears_of_no_batch_is_given_up_after_a_while() -> None:
    async def act(made: Stage) -> None:
        made.members["b"].bus.hold()  # nothing that is said reaches anybody
        await made.until(lambda: made.state("a") == "loading")
        made.members["b"].bus.forget()
        await made.kill("b")

    running(act)
