"""When roles change: at once where one lacks instances, never to and fro, one a round on the way down."""

from livescale.services.monitor.policy import RetryTimes, RoleRule, ScalingPolicy
from livescale.services.monitor.role_policy import RecentMost
from livescale.shared.messages.membership import EngineLoad, Role, WorkerReport
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.scaling import RoleMove
from tests.monitor.reports import Watched, load, queues, record, serving, spare, spec

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
