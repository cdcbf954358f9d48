"""Whoever dies, leaves or gives up in the middle of a live scale."""

from livescale.services.worker.live.source import FAILED_HAND_OFFS
from livescale.shared.messages.membership import Stale
from livescale.shared.subjects import STALE
from tests.worker.live.kinds import BLOCKS, CLOCK
from tests.worker.live.scenes import parked, play
from tests.worker.live.stage import Stage
from tests.worker.serving import random_prompt, submit


def test_a_source_that_dies_with_a_request_in_its_hands_leaves_it_to_the_target_with_its_layers() -> None:
    async def act(made: Stage) -> None:
        await parked(made)
        await made.help("s", "t")
        await made.kill("s")
        await made.until(lambda: made.count("t", "returned_tasks") == 1)
        await made.load("t", list(range(BLOCKS)), "zigzag")
        await made.until(lambda: made.ready("t") == BLOCKS)
        assert made.count("t", "live_layers") == 3  # none was run twice

    play(act)


def test_a_target_that_dies_before_its_kv_has_gone_out_has_the_source_compute_it_again() -> None:
    async def act(made: Stage) -> None:
        await parked(made)
        made.faults.message_seconds = 0.1
        await made.help("s", "t")
        await made.until(lambda: made.count("s", "pulled_tasks") == 1)
        made.faults.message_seconds = 30.0
        await made.kill("t")
        known = CLOCK.now()
        await made.until(lambda: made.count("s", "lost_kv") == 1)
        assert CLOCK.now() - known < 1.0  # and not only when the link gives up

    play(act)


def test_a_request_whose_deadline_comes_while_it_is_parked_ends_then() -> None:
    async def act(made: Stage) -> None:
        await parked(made, deadline=CLOCK.wall() + 0.5)
        await made.until(lambda: made.client.wishes[0].is_over)
        assert made.client.wishes[0].ends == ["deadline"]
        made.client.wishes.clear()

    play(act)


def test_a_target_that_is_told_to_stop_gives_all_its_requests_back() -> None:
    async def act(made: Stage) -> None:
        await parked(made, 3)
        await made.abort("t")
        await made.until(lambda: made.state("t") == "spare")
        assert made.client.places.keys() <= {"r0~1", "r1~1", "r2~1"}

    play(act)


def test_a_source_that_drains_takes_what_it_was_given_and_no_more() -> None:
    async def act(made: Stage) -> None:
        await parked(made, 3)
        await made.help("s", "t")
        await made.until(lambda: made.count("s", "pulled_tasks") == 1)
        await made.drain("s")
        await made.until(lambda: made.state("s") == "spare")
        assert made.count("s", "pulled_tasks") <= 2
        await made.load("t", list(range(BLOCKS)), "zigzag")

    play(act)


def test_sources_and_targets_that_were_declared_dead_forget_everything() -> None:
    for who in ("s", "t"):

        async def act(made: Stage, who: str = who) -> None:
            await parked(made, 3)
            await made.help("s", "t")
            await made.until(lambda: made.count("s", "pulled_tasks") == 1)
            made.bus.publish(STALE, Stale(id=who, epoch=1), id=who)
            await made.until(lambda: made.state(who) == "spare")
            made.client.lost_at(who)
            if who == "s":
                await made.load("t", list(range(BLOCKS)), "zigzag")

        play(act)


def test_a_source_pulls_only_when_nothing_of_its_own_waits_to_be_prefilled() -> None:
    async def act(made: Stage) -> None:
        await parked(made)
        for number in range(4):
            await made.client.submit(submit(f"own{number}", random_prompt(number, 400), max_tokens=4), "s")
        await made.help("s", "t")
        scheduler = made.members["s"].worker._serving.scheduler
        assert scheduler is not None
        while made.count("s", "pulled_tasks") == 0:
            assert not scheduler.wants_more()
            await made.until(lambda: scheduler.wants_more())
            await made.until(lambda: made.count("s", "pulled_tasks") == 1)

    play(act)


def test_a_block_that_comes_damaged_is_run_by_nobody_and_the_target_stays_live() -> None:
    async def act(made: Stage) -> None:
        await made.load("t", [3], "zigzag", damaged=True)
        await parked(made)
        await made.help("s", "t")
        await made.until(lambda: made.count("s", "pulled_tasks") == 1)
        assert (made.state("t"), made.ready("t")) == ("live", 3)
        await made.finish_loading("t")

    play(act)


def test_a_target_of_which_nothing_arrives_is_left_with_its_requests() -> None:
    async def act(made: Stage) -> None:
        await parked(made)
        made.faults.messages = 0
        await made.help("s", "t")
        await made.until(lambda: made.reports["s"].helping == ["t"])
        await made.until(lambda: made.reports["s"].helping == [])
        assert made.count("t", "returned_tasks") == FAILED_HAND_OFFS
        await made.finish_loading("t")

    play(act)


def test_a_source_helps_on_after_the_bus_was_away() -> None:
    async def act(made: Stage) -> None:
        await made.help("s", "t")
        await made.outage(4.0)
        await made.client.submit(submit("r", random_prompt(1, 150), max_tokens=6), "t")
        await made.until(lambda: made.count("s", "pulled_tasks") == 1)

    play(act)


def test_a_target_that_says_nothing_is_left_after_a_while() -> None:
    async def act(made: Stage) -> None:
        await parked(made)
        made.broker.lose = lambda subject: ".pull" in subject
        await made.help("s", "t")
        await made.until(lambda: made.reports["s"].helping == ["t"])
        await made.until(lambda: made.reports["s"].helping == [])
        await made.finish_loading("t")

    play(act)
