"""How many instances prefill and decode, by the authors' formulas; and when roles change: at once where one lacks
instances, never to and fro, one a round on the way down."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from livescale.services.monitor.needs import Need
from livescale.services.monitor.policy import RetryTimes, ScalingPolicy
from livescale.services.monitor.role_policy import (
    RecentMost,
    RoleNeeds,
    choose_counts,
    choose_to_give,
    fill_up,
    lacking,
    weigh_roles,
)
from livescale.services.monitor.role_signals import RoleLoad
from livescale.services.monitor.weighing import RoleRule
from livescale.shared.messages.membership import EngineLoad, Role, WorkerReport
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.scaling import RoleMove
from tests.monitor.reports import Watched, load, observed, queues, record, serving, spare, spec

Judged = tuple[str, int, dict[Role, int]]


class WatchedRoles(Watched):
    """A policy by which instances prefill or decode, with one model."""

    def __init__(self, model: ModelSpec | None = None, *, by_need: bool = True) -> None:
        super().__init__(model)
        times = RetryTimes(asked_seconds=5.0, retry_seconds=1.0)
        self.policy = ScalingPolicy(self.signals, times, RoleRule("on", by_need))

    def judge_roles(self, now: float) -> Judged:
        [verdict] = self.policy.decide(now)
        return verdict.action, verdict.target, dict(verdict.roles)


def prefilling(worker: str, engine: EngineLoad | None = None) -> WorkerReport:
    return serving(worker, engine, role="prefill")


def decoding(worker: str, engine: EngineLoad | None = None) -> WorkerReport:
    return serving(worker, engine, role="decode")


BUSY = load(running_requests=10)


def test_the_role_that_lacks_instances_gets_them_at_once_and_the_other_keeps_its_own() -> None:
    watched = WatchedRoles()
    watched.hear(0.0, prefilling("p"), decoding("d", BUSY), queues(0), *(spare(f"s{n}") for n in range(4)))
    assert watched.judge_roles(0.0) == ("out", 3, {"prefill": 1, "decode": 2})
    watched = WatchedRoles()
    watched.hear(0.0, prefilling("p"), decoding("d"), queues(2100), *(spare(f"s{n}") for n in range(6)))
    assert watched.judge_roles(0.0) == ("out", 5, {"prefill": 4, "decode": 1})
    [verdict] = watched.policy.decide(0.0)
    assert verdict.reason == "3 to 5 should prefill, 1 do: 2100 prompt tokens wait at 1000 tokens/s an instance"
    assert (verdict.inputs["prefill_low"], verdict.inputs["decode_instances"]) == (3, 1)


def test_without_a_spare_worker_instances_that_are_not_needed_where_they_are_change_roles() -> None:
    watched = WatchedRoles()
    watched.hear(0.0, prefilling("p"), prefilling("q"), decoding("d", BUSY), queues(0))
    assert watched.judge_roles(0.0) == ("switch", 3, {"prefill": 1, "decode": 2})
    watched.hear(0.1, prefilling("p"), prefilling("q"), decoding("d"), decoding("e"), queues(2100))
    assert watched.judge_roles(9.0)[0] == "hold"  # too old
    watched.hear(9.0, prefilling("p"), prefilling("q"), decoding("d"), decoding("e"), queues(2100))
    assert watched.judge_roles(9.0) == ("switch", 4, {"prefill": 3, "decode": 1})


def test_the_last_of_a_role_stays() -> None:
    watched = WatchedRoles()
    watched.hear(0.0, prefilling("p"), decoding("d", BUSY), queues(0))
    assert watched.judge(0.0) == ("hold", 2, "capacity")


def test_what_a_role_needed_of_late_it_keeps_though_nothing_waits_at_this_moment() -> None:
    watched = WatchedRoles(spec(downscale_delay_s=2.0))
    watched.hear(0.0, prefilling("p"), prefilling("q"), decoding("d"), queues(1000))
    assert watched.judge_roles(0.0)[0] == "hold"
    for now, expected in ((1.0, "hold"), (1.9, "hold"), (2.5, "switch")):
        watched.hear(now, prefilling("p"), prefilling("q"), decoding("d", BUSY), queues(0))
        assert watched.judge_roles(now)[0] == expected, now


def test_an_instance_that_was_given_is_not_taken_back_within_the_delay() -> None:
    watched = WatchedRoles(spec(downscale_delay_s=2.0))
    switches = 0
    roles: dict[str, Role] = {"a": "prefill", "b": "prefill", "c": "decode", "d": "decode"}
    for tick in range(200):  # 10 s in which each role lacks an instance every other moment
        now, crowded = tick / 20, tick % 2
        reports = [serving(w, BUSY if role == "decode" and crowded else load(), role=role) for w, role in roles.items()]
        watched.hear(now, *reports, queues(0 if crowded else 1600))
        action, _, wanted = watched.judge_roles(now)
        if action == "switch":
            switches += 1
            giver: Role = "prefill" if wanted["prefill"] < list(roles.values()).count("prefill") else "decode"
            roles[next(w for w, role in roles.items() if role == giver)] = "decode" if giver == "prefill" else "prefill"
    assert switches <= 2  # once before the need of the other was seen, and once back


def test_one_a_round_is_given_back_of_the_role_that_has_most_beyond_its_need() -> None:
    watched, reports = WatchedRoles(), [prefilling(id) for id in "pqr"] + [decoding("d"), decoding("e")]
    watched.hear(0.0, *reports, queues(0))
    assert watched.judge_roles(0.0)[0] == "hold"
    for now in (1.0, 1.95):
        watched.hear(now, *reports, queues(0))
        assert watched.judge(now) == ("hold", 5, "idle")
    watched.hear(2.1, *reports, queues(0))
    assert watched.judge_roles(2.1) == ("in", 4, {"prefill": 2, "decode": 2})
    watched.hear(3.0, spare("p"), *reports[1:], queues(0))
    assert watched.judge_roles(3.0) == ("in", 3, {"prefill": 1, "decode": 2})


def test_one_instance_that_can_do_all_alone_is_left_and_two_come_back_only_for_more_than_it_can() -> None:
    watched = WatchedRoles()
    both = prefilling("p"), decoding("d", load(running_requests=1))
    for now in (0.0, 1.0, 2.5):
        watched.hear(now, *both, queues(0))
        action = watched.judge_roles(now)
    assert action == ("in", 1, {"prefill": 1, "decode": 0})
    watched = WatchedRoles()
    watched.hear(0.0, prefilling("p", load(running_requests=5)), queues(200), spare("s"))
    assert watched.judge_roles(0.0)[0] == "hold"
    watched.hear(0.1, prefilling("p", load(running_requests=9)), queues(200), spare("s"))
    assert watched.judge_roles(0.1) == ("out", 2, {"prefill": 1, "decode": 1})


def test_the_last_instance_of_a_model_without_load_gets_no_second_one_and_goes() -> None:
    watched = WatchedRoles(spec(min_instances=0, downscale_delay_s=2.0, downscale_to_zero_delay_s=3.0))
    for now, expected in ((0.0, ("hold", 1)), (2.0, ("hold", 1)), (3.5, ("in", 0))):
        watched.hear(now, prefilling("p"), queues(0), spare("s"))
        assert watched.judge_roles(now)[:2] == expected


def test_roles_that_running_scales_change_count_as_changed() -> None:
    watched = WatchedRoles()
    watched.hear(0.0, prefilling("p"), prefilling("q"), decoding("d", BUSY), queues(0))
    move = RoleMove(worker="q", instance="i-q", epoch=1, role="decode")
    under_way = record("switching", [])
    watched.signals.on_scale(type(under_way)(id="s-1", decision=under_way.decision, state="switching", moves=[move]))
    assert watched.judge_roles(0.0) == ("hold", 3, {})


def test_with_a_fixed_share_and_for_several_ranks_only_the_number_of_instances_is_judged() -> None:
    for watched in (
        WatchedRoles(by_need=False),
        WatchedRoles(spec(disaggregation="off")),
        WatchedRoles(spec(tensor_parallel_size=2)),
    ):
        watched.hear(0.0, prefilling("p"), prefilling("q"), decoding("d", BUSY), queues(0))
        assert watched.judge_roles(0.0) == ("hold", 3, {})


def test_the_largest_value_of_late_counts() -> None:
    recent = RecentMost()
    values = [(0.0, 1), (1.0, 5), (2.0, 3), (5.9, 2), (6.1, 2), (7.1, 1), (13.0, 0)]
    assert [recent.add(value, now, 5.0) for now, value in values] == [1, 5, 5, 5, 3, 2, 0]


def needs(prefill: tuple[int, int], decode: tuple[int, int]) -> RoleNeeds:
    """The needs of each role, as lower and upper limits."""
    total = Need("prefill", prefill[0] + decode[0], prefill[1] + decode[1], "")
    return RoleNeeds(Need("prefill", *prefill, ""), Need("decode", *decode, ""), total)


def weighed(there: RoleLoad, *, pre_scale: bool = True, **signals: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    found = weigh_roles(observed(instances=4, roles=there, **signals), spec(), pre_scale=pre_scale)
    return (found.prefill.low, found.prefill.high), (found.decode.low, found.decode.high)


@pytest.mark.parametrize(
    ("signals", "unsent", "prefill", "decode"),
    [
        ({}, 0, (1, 1), (1, 1)),
        # 2,100 tokens at 1,000 tokens/s: within 0.7 s 3 instances, within 0.5 s 5.
        ({"waiting_tokens": 2100, "waiting_requests": 1}, 0, (3, 5), (1, 1)),
        # 290 of 100 KV blocks an instance: 0.95 of 4 instances are enough, and more than 0.75 of 3.
        ({"kv_blocks_used": 290, "running_requests": 9}, 0, (1, 1), (4, 4)),
        # KV of 5,000 tokens at 2,000 tokens/s: within 0.8 s 4 links, within 0.4 s 7.
        ({}, 5_000, (4, 7), (4, 7)),
        ({"waiting_tokens": 4200, "waiting_requests": 1}, 1_500, (6, 9), (1, 2)),
        # What keeps up with the prompts that arrive prefills on, and has nothing to do with decode.
        ({"arriving_rate": 2500.0}, 0, (1, 3), (1, 1)),
    ],
)
def test_prefill_follows_what_waits_decode_what_is_held_and_both_what_is_to_be_sent(
    signals: dict[str, Any], unsent: int, prefill: tuple[int, int], decode: tuple[int, int]
) -> None:
    assert weighed(RoleLoad(2, 2, 0, unsent, 2_000.0), **signals) == (prefill, decode)


def test_while_a_spare_worker_keeps_the_parameters_prefill_follows_only_what_waits() -> None:
    there = RoleLoad(2, 2, 0, 0, 2_000.0)
    burst: dict[str, Any] = {"waiting_tokens": 2100, "waiting_requests": 1, "arriving_rate": 6500.0}
    assert weighed(there, **burst, parked=0) == ((7, 7), (1, 1))
    assert weighed(there, **burst, parked=1) == ((5, 5), (1, 1))
    assert weighed(there, arriving_rate=6500.0, parked=1) == ((1, 1), (1, 1))
    sending = RoleLoad(2, 2, 0, 5_000, 2_000.0)
    assert weighed(sending, parked=1) == ((4, 7), (4, 7)), "KV that is to be sent needs links all the same"


def test_without_pre_scaling_decode_follows_only_what_is_held() -> None:
    there = RoleLoad(2, 2, 0, 5_000, 2_000.0)
    burst: dict[str, Any] = {"waiting_tokens": 700, "waiting_requests": 30}
    assert weighed(there, **burst)[1] == (4, 7)
    assert weighed(there, pre_scale=False, **burst) == ((4, 7), (1, 1))


def test_a_role_of_which_nothing_is_known_keeps_what_it_has() -> None:
    assert weighed(RoleLoad(3, 1), waiting_tokens=10, waiting_requests=1, prefill_rate=0.0)[0] == (3, 3)
    assert weighed(RoleLoad(1, 3), running_requests=1, max_requests=0.0)[1] == (3, 3)
    assert weighed(RoleLoad(1, 1, 0, 9_000, None)) == ((1, 1), (1, 1))


@pytest.mark.parametrize(
    ("signals", "low", "high"),
    [
        ({}, 0, 0),
        ({"running_requests": 1}, 1, 1),
        # Within the upper bounds together, and not within the lower ones: one stays one, and two stay two.
        ({"running_requests": 5, "kv_blocks_used": 40, "waiting_tokens": 200}, 1, 2),
        ({"running_requests": 9, "waiting_tokens": 200}, 2, 3),
        # Prompts come faster than one computes them: one stays one until they wait, and three are not too many.
        ({"running_requests": 1, "arriving_rate": 1500.0}, 1, 3),
    ],
)
def test_one_instance_is_enough_where_it_can_do_all_of_it_and_one_and_two_do_not_alternate(
    signals: dict[str, float], low: int, high: int
) -> None:
    total = weigh_roles(observed(roles=RoleLoad(1, 0), **signals), spec(min_instances=0), pre_scale=True).total
    assert (total.low, total.high) == (low, high)


@pytest.mark.parametrize(
    ("there", "prefill", "decode", "most", "counts"),
    [
        ((2, 2), (1, 3), (1, 3), 9, (2, 2)),
        ((1, 2), (3, 5), (1, 3), 9, (4, 2)),  # to the middle of its range
        ((4, 1), (1, 2), (2, 3), 9, (2, 3)),  # what exceeds the range is given
        ((2, 1), (1, 3), (2, 2), 3, (1, 2)),  # else down to what is needed
        ((2, 1), (2, 2), (2, 2), 3, (2, 1)),  # nobody gives what it needs as much
        ((2, 2), (4, 4), (4, 4), 4, (2, 2)),
        ((1, 5), (8, 8), (4, 4), 6, (4, 2)),  # to each the same part
        ((1, 1), (1, 1), (5, 9), 3, (1, 2)),
        ((1, 0), (1, 1), (1, 1), 1, (1, 0)),
    ],
)
def test_a_role_that_lacks_instances_gets_what_the_other_does_not_need(
    there: tuple[int, int], prefill: tuple[int, int], decode: tuple[int, int], most: int, counts: tuple[int, int]
) -> None:
    seen = observed(instances=sum(there), roles=RoleLoad(*there))
    assert tuple(choose_counts(seen, needs(prefill, decode), most).values()) == counts


def test_instances_that_do_everything_stand_in_for_either_role() -> None:
    seen = observed(instances=3, roles=RoleLoad(1, 0, 2))
    assert lacking(seen, needs((2, 2), (1, 1))) == []
    assert lacking(seen, needs((2, 2), (2, 2))) == ["decode", "prefill"]
    assert lacking(observed(instances=3, roles=RoleLoad(2, 1)), needs((1, 1), (2, 2))) == ["decode"]


def test_who_has_most_beyond_its_need_gives_and_the_last_of_a_role_stays_as_long_as_there_are_two() -> None:
    assert choose_to_give({"prefill": 3, "decode": 3}, needs((1, 1), (1, 3))) == {"prefill": 2, "decode": 3}
    assert choose_to_give({"prefill": 1, "decode": 3}, needs((0, 0), (3, 3))) == {"prefill": 1, "decode": 2}
    assert choose_to_give({"prefill": 1, "decode": 1}, needs((1, 1), (1, 1))) == {"prefill": 1, "decode": 0}


COUNT = some.integers(1, 9)


@given(COUNT, COUNT, COUNT, COUNT, COUNT, COUNT, some.integers(0, 9))
def test_there_are_never_too_many_and_one_of_each_role_is_left(
    prefill: int, decode: int, p_low: int, p_more: int, d_low: int, d_more: int, spare: int
) -> None:
    seen = observed(instances=prefill + decode, roles=RoleLoad(prefill, decode))
    most = prefill + decode + spare
    counts = choose_counts(seen, needs((p_low, p_low + p_more), (d_low, d_low + d_more)), most)
    full = fill_up(counts, {"prefill": prefill, "decode": decode})
    assert min(full.values()) >= 1
    assert sum(full.values()) <= most
    assert sum(full.values()) >= prefill + decode or sum(counts.values()) >= prefill + decode
