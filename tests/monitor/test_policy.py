import pytest
from msgspec.structs import replace

from tests.monitor.reports import Watched, dead, decision, load, queues, record, serving, spare, spec

SPARES = [spare(f"w-{index}") for index in range(3, 9)]


def test_below_the_range_it_goes_to_the_midpoint_at_once() -> None:
    watched = Watched()
    watched.hear(0.0, serving("w-1"), queues(2100), *SPARES)
    assert watched.judge(0.0) == ("out", 4, "prefill")


def test_the_verdict_shows_what_it_was_made_from() -> None:
    watched = Watched()
    watched.hear(0.0, serving("w-1", load(waiting_tokens=100, running_requests=3)), queues(2000), *SPARES)
    [verdict] = watched.policy.decide(0.0)
    assert verdict.reason == "2100 prompt tokens wait at 1000 tokens/s an instance"
    shown = {name: verdict.inputs[name] for name in ("waiting_tokens", "running_requests", "instances", "needed_low")}
    assert shown == {"waiting_tokens": 2100, "running_requests": 3, "instances": 1, "needed_low": 3}


def test_the_rate_is_the_median_of_the_models_instances() -> None:
    watched = Watched()
    rates = (500.0, 1000.0, 9000.0)
    watched.hear(0.0, *(serving(f"w-{i}", load(prefill_tokens_per_second=rate)) for i, rate in enumerate(rates)))
    watched.hear(0.0, queues(2100), *SPARES)
    assert watched.judge(0.0) == ("hold", 3, "within")


def test_a_rate_that_nobody_tells_now_is_what_was_last_known() -> None:
    watched = Watched(spec(min_instances=0))
    watched.hear(0.0, serving("w-1"), queues())
    watched.judge(0.0)
    watched.signals.on_lease(dead("w-1"))
    watched.hear(0.0, queues(2100), *SPARES)
    assert watched.judge(0.0) == ("out", 4, "prefill")


def test_it_does_not_ask_again_before_it_has_seen_what_the_planner_does() -> None:
    watched = Watched()
    watched.hear(0.0, serving("w-1"), queues(2100), *SPARES)
    watched.policy.asked(decision(4), 0.0)
    assert watched.judge(0.1) == ("hold", 1, "asked")
    watched.policy.planned(decision(9, id="an operator's"))
    assert watched.judge(0.1) == ("hold", 1, "asked")
    watched.signals.on_scale(record("planned", ["w-3", "w-4", "w-5"]))
    watched.policy.planned(decision(4))
    assert watched.judge(0.2) == ("hold", 4, "within")


def test_a_planner_that_never_answers_is_asked_again() -> None:
    watched = Watched()
    watched.policy.asked(decision(4), 0.0)
    watched.hear(5.0, serving("w-1"), queues(2100), *SPARES)
    assert watched.judge(5.0)[0] == "out"


def test_what_is_coming_counts_before_it_is_seen_and_once_it_is() -> None:
    watched = Watched()
    watched.hear(0.0, serving("w-1"), queues(2100), *SPARES)
    watched.signals.on_scale(record("loading", ["w-3", "w-4", "w-5"]))
    assert watched.judge(0.0) == ("hold", 4, "within")
    watched.hear(0.0, *(serving(f"w-{i}", state="loading") for i in (3, 4, 5)))
    assert watched.judge(0.0) == ("hold", 4, "within")
    watched.signals.on_scale(record("done", ["w-3", "w-4", "w-5"]))
    assert watched.judge(0.0) == ("hold", 4, "within")


def test_after_a_failed_scale_it_waits_a_little_and_asks_again() -> None:
    watched = Watched()
    watched.hear(0.0, serving("w-1"), queues(2100), *SPARES)
    watched.signals.on_scale(record("loading", ["w-3", "w-4", "w-5"]))
    watched.signals.on_scale(record("failed", ["w-3", "w-4", "w-5"]))
    watched.policy.failed("m", 0.0)
    assert watched.judge(0.5)[2] == "retry"
    assert watched.judge(1.0) == ("out", 4, "prefill")


def test_the_more_scales_fail_in_a_row_the_longer_it_waits() -> None:
    watched, now = Watched(), 0.0
    for wait in (1.0, 2.0, 4.0, 8.0, 16.0, 16.0):
        watched.policy.failed("m", now)
        watched.hear(now + wait, serving("w-1"), queues(2100), *SPARES)
        assert watched.judge(now + wait - 0.1)[2] == "retry"
        assert watched.judge(now + wait) == ("out", 4, "prefill")
        now += wait
    watched.policy.succeeded("m")
    watched.policy.failed("m", now)
    assert watched.judge(now + 1.0) == ("out", 4, "prefill")


def test_spare_workers_limit_the_ask_and_the_reason_says_so() -> None:
    watched = Watched()
    watched.hear(0.0, serving("w-1"), queues(2100), spare("w-3"), spare("small", arena_bytes=10))
    assert watched.judge(0.0) == ("out", 2, "prefill")
    assert "only 1 of 3 wanted are spare or drain" in watched.reason(0.0)


def test_without_spare_workers_it_holds_and_says_so() -> None:
    watched = Watched()
    watched.hear(0.0, serving("w-1"), queues(2100))
    assert watched.judge(0.0) == ("hold", 1, "capacity")


def test_instances_that_drain_are_to_be_had_before_they_are_spare() -> None:
    watched = Watched()
    watched.hear(0.0, serving("w-1", version="v"), queues(2100), spare("w-3"))
    watched.hear(0.0, serving("w-2", version="v", state="draining"))
    scale = record("draining", ["w-2"], "in")
    watched.signals.on_scale(replace(scale, decision=replace(scale.decision, rule="idle")))
    assert watched.judge(0.0) == ("out", 3, "prefill")
    assert "only 2 of 3 wanted are spare or drain" in watched.reason(0.0)


def test_once_instances_serve_again_it_waits_for_their_word_and_no_longer() -> None:
    watched = Watched()
    watched.hear(0.0, serving("w-1"), queues(2100), *SPARES)
    watched.policy.asked(decision(2), 0.0)
    watched.policy.recalled("m", 0.01)
    assert watched.judge(0.1)[2] == "asked"
    assert watched.judge(0.12) == ("out", 4, "prefill")


def test_what_keeps_up_with_arriving_prompts_is_not_given_back_while_none_waits() -> None:
    watched = Watched()

    def hear(now: float, count: int, arriving: float) -> tuple[str, int, str]:
        router = queues(0)
        router = replace(router, queues=[replace(router.queues[0], arriving_tokens_per_second=arriving)])
        watched.hear(now, *(serving(f"w-{i}") for i in range(count)), router)
        return watched.judge(now)

    assert hear(0.0, 4, 2500.0) == ("hold", 4, "idle")
    assert hear(2.0, 4, 2500.0) == ("in", 3, "idle")
    watched.signals.on_lease(dead("w-3"))
    assert hear(2.1, 3, 2500.0) == ("hold", 3, "within")
    assert hear(2.2, 3, 0.0)[0] == "hold", "they came within the delay"
    assert hear(4.2, 3, 0.0) == ("in", 2, "idle")


def test_a_spare_worker_not_heard_lately_is_not_counted_on() -> None:
    watched = Watched()
    watched.hear(0.0, spare("w-3"))
    watched.hear(2.5, serving("w-1"), queues(2100))
    assert watched.judge(2.5) == ("hold", 1, "capacity")


def test_workers_that_a_running_plan_has_taken_are_not_spare() -> None:
    watched = Watched()
    watched.hear(0.0, serving("w-1"), queues(2100), spare("w-3"), spare("w-4"))
    watched.signals.on_scale(record("planned", ["w-3"]))
    assert watched.judge(0.0) == ("out", 3, "prefill")


def test_one_a_round_is_given_back_after_fewer_were_enough_for_the_delay() -> None:
    watched = Watched()

    def hear(now: float, count: int, tokens: int = 0) -> tuple[str, int, str]:
        watched.hear(now, *(serving(f"w-{i}") for i in range(count)), queues(tokens))
        for gone in range(count, 5):
            watched.signals.on_lease(dead(f"w-{gone}"))
        return watched.judge(now)

    assert hear(0.0, 5) == ("hold", 5, "idle")
    assert hear(1.0, 5, 1400) == ("hold", 5, "idle"), "three would do"
    assert hear(1.9, 5) == ("hold", 5, "idle")
    assert hear(2.0, 5) == ("in", 4, "idle")
    assert hear(2.1, 4) == ("in", 3, "idle")
    assert hear(2.2, 3) == ("hold", 3, "idle"), "they were needed within the delay"
    assert hear(3.1, 3) == ("in", 2, "idle")


def test_load_in_between_starts_the_idle_time_anew() -> None:
    watched = Watched()
    for now, tokens in ((0.0, 0), (1.0, 1400), (2.0, 0), (3.9, 0)):
        watched.hear(now, serving("w-1"), serving("w-2"), queues(tokens))
        assert watched.judge(now)[0] == "hold"
    watched.hear(4.0, serving("w-1"), serving("w-2"), queues())
    assert watched.judge(4.0)[0] == "in"


def test_nothing_is_given_back_while_an_instance_loads() -> None:
    watched = Watched()
    for now in (0.0, 2.0):
        watched.hear(now, serving("w-1"), serving("w-2", state="loading"), queues())
        assert watched.judge(now)[0] == "hold"
    assert watched.judge(2.0)[2] == "loading"


def test_instances_that_leave_are_not_given_back_twice() -> None:
    watched = Watched()
    watched.signals.on_scale(record("draining", ["w-2"], action="in"))
    for now in (0.0, 2.0, 4.0):
        watched.hear(now, serving("w-1"), serving("w-2"), queues())
        assert watched.judge(now) == ("hold", 1, "within")


@pytest.mark.parametrize("minimum", [0, 1])
def test_it_never_goes_below_the_minimum(minimum: int) -> None:
    watched = Watched(spec(min_instances=minimum))
    for now in (0.0, 6.0):
        watched.hear(now, serving("w-1"), queues())
        action, target, _ = watched.judge(now)
    assert (action, target) == (("in", 0) if minimum == 0 else ("hold", 1))


def test_the_last_instance_is_given_back_after_a_longer_time_of_its_own() -> None:
    watched = Watched(spec(min_instances=0))

    def hear(now: float, *workers: str) -> tuple[str, int, str]:
        watched.hear(now, *map(serving, workers), queues())
        return watched.judge(now)

    assert hear(0.0, "w-1", "w-2") == ("hold", 2, "idle")
    assert hear(2.0, "w-1", "w-2") == ("in", 1, "idle")
    watched.policy.asked(replace(decision(1, "in"), current=2, rule="idle"), 2.0)
    watched.signals.on_lease(dead("w-2"))
    assert hear(7.9, "w-1") == ("hold", 1, "idle")
    assert watched.reason(7.9) == "0 would do; giving back one after 6 s"
    assert hear(8.0, "w-1") == ("in", 0, "idle")


def test_a_request_to_a_model_at_zero_asks_for_one_instance_once() -> None:
    watched = Watched(spec(min_instances=0))
    watched.hear(0.0, queues(5), *SPARES)
    assert watched.judge(0.0) == ("out", 1, "from-zero")
    watched.policy.asked(decision(1), 0.0)
    watched.hear(0.1, queues(10, requests=2))
    assert watched.judge(0.1) == ("hold", 0, "asked")
    watched.signals.on_scale(record("loading", ["w-3"]))
    watched.policy.planned(decision(1))
    assert watched.judge(0.2)[:2] == ("hold", 1)
    watched.hear(0.3, serving("w-3", state="loading"))
    assert watched.judge(0.3)[:2] == ("hold", 1)


def test_a_model_at_zero_that_fits_nowhere_says_why_nothing_scales() -> None:
    watched = Watched(spec(min_instances=0))
    watched.hear(0.0, queues(5), spare("small", arena_bytes=10))
    assert watched.judge(0.0) == ("hold", 0, "capacity")
    assert watched.reason(0.0) == "1 wanted, no spare worker fits: 1 requests wait and nothing serves"


def test_an_upscale_delay_is_waited_for() -> None:
    watched = Watched(spec(upscale_delay_s=1.0))
    watched.hear(0.0, serving("w-1"), queues(2100), *SPARES)
    assert watched.judge(0.0) == ("hold", 1, "delay")
    assert watched.judge(1.0) == ("out", 4, "prefill")


def test_the_minimum_waits_for_nothing() -> None:
    watched = Watched(spec(upscale_delay_s=9.0, min_instances=2))
    watched.hear(0.0, *SPARES)
    assert watched.judge(0.0) == ("out", 2, "minimum")


@pytest.mark.parametrize("late", ["worker", "router"])
def test_a_stale_signal_holds_and_is_named(late: str) -> None:
    watched = Watched()
    watched.hear(0.0, serving("w-1"), queues(2100), *SPARES)
    watched.hear(2.5, queues(2100) if late == "worker" else serving("w-1"))
    assert watched.judge(2.5) == ("hold", 1, "unknown")
    assert watched.reason(2.5) == f"{'w-1' if late == 'worker' else 'the router'} last reported 2.5 s ago"


def test_a_router_that_was_never_heard_is_unknown() -> None:
    watched = Watched()
    watched.hear(0.0, serving("w-1"))
    assert watched.judge(0.0) == ("hold", 1, "unknown")


def test_a_dead_worker_counts_no_more() -> None:
    watched = Watched(spec(min_instances=2))
    watched.hear(0.0, serving("w-1"), serving("w-2"), queues(), *SPARES)
    assert watched.judge(0.0)[0] == "hold"
    watched.signals.on_lease(dead("w-2"))
    watched.hear(0.0, serving("w-2"))  # what was still on its way
    assert watched.judge(0.0) == ("out", 2, "minimum")


def test_a_model_that_is_not_in_memory_is_not_judged() -> None:
    watched = Watched()
    [entry] = watched.signals.models()
    watched.signals.on_models([type(entry)(spec=entry.spec, state="reading")])
    assert watched.policy.decide(0.0) == []


def test_a_scale_whose_end_was_not_heard_stops_counting_once_the_planner_does_not_have_it() -> None:
    watched = Watched()
    watched.hear(0.0, queues(0), *SPARES)
    watched.signals.on_scale(record("loading", ["w-9"]))
    assert watched.judge(0.0)[:2] == ("hold", 1)
    assert watched.signals.sees_scales
    watched.signals.on_scales([record("done", ["w-9"])])
    assert not watched.signals.sees_scales
    assert watched.judge(0.0) == ("out", 1, "minimum")
