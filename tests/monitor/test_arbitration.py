from collections.abc import Mapping
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.services.monitor.arbitration import (
    IDLE_SECONDS,
    SURPLUS_SECONDS,
    Donor,
    Lack,
    choose_donors,
)
from livescale.services.monitor.policy import RetryTimes, ScalingPolicy
from livescale.services.monitor.signals import Signals
from livescale.shared.messages.membership import EngineLoad, QueueLoad, RouterReport, WorkerReport
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry
from tests.monitor.reports import COMMON, SIZE, decision, load, record, serving, spare


class Two:
    """A model `waits` that has requests and nothing that serves, and a model `other` with instances."""

    def __init__(
        self, *instances: WorkerReport, size: int = SIZE, priority: int = 0, ranks: int = 1, **other: object
    ) -> None:
        self.signals = Signals(stale_seconds=2.0)
        self.policy = ScalingPolicy(self.signals, RetryTimes(asked_seconds=5.0, retry_seconds=1.0))
        self.instances = instances
        common = {**COMMON, "path": "/m", "downscale_delay_s": 60.0, "downscale_to_zero_delay_s": 60.0}
        waits = {"min_instances": 0, "priority": priority, "tensor_parallel_size": ranks, **common}
        specs = (
            ModelSpec(**{"name": "other", "min_instances": 0, **common, **other}),  # type: ignore[arg-type]
            ModelSpec(**{"name": "waits", **waits}),  # type: ignore[arg-type]
        )
        self.signals.on_models(ModelEntry(spec=each, state="ready", version="v", size_bytes=size) for each in specs)

    def judge(self, now: float, waiting: int = 1) -> dict[str, tuple[str, int, str]]:
        return {name: verdict[:3] for name, verdict in self.explain(now, waiting).items()}

    def explain(self, now: float, waiting: int = 1) -> dict[str, tuple[str, int, str, str]]:
        for report in self.instances:
            self.signals.on_worker(report, now)
        queue = QueueLoad(model="waits", waiting_requests=waiting, waiting_tokens=0, oldest_seconds=0.0, running=0)
        self.signals.on_router(RouterReport(id="router-0", epoch=1, queues=[queue]), now)
        return {each.model: (each.action, each.target, each.rule, each.reason) for each in self.policy.decide(now)}


def has(worker: str, engine: EngineLoad | None = None, **more: object) -> WorkerReport:
    return serving(worker, engine, **{"model": "other", **more})


BUSY = load(running_requests=10)  # all slots of an instance


def test_a_model_that_waits_gets_an_idle_instance_of_another_at_once() -> None:
    two = Two(has("w-1"))
    assert two.judge(0.0, waiting=0)["other"] == ("hold", 1, "idle")
    assert two.judge(5.0) == {"other": ("in", 0, "yield"), "waits": ("hold", 0, "capacity")}


def test_it_is_asked_for_once() -> None:
    two = Two(has("w-1"), has("w-2"))
    two.judge(0.0, waiting=0)
    assert two.judge(5.0)["other"] == ("in", 1, "yield")
    two.policy.asked(replace(decision(1, "in"), model="other"), 5.0)
    assert two.judge(5.1)["other"] == ("hold", 2, "asked")
    draining = replace(record("draining", ["w-1"], "in"), decision=replace(decision(1, "in"), model="other"))
    two.signals.on_scale(draining)
    two.policy.planned(replace(decision(1, "in"), model="other"))
    assert two.judge(9.0)["other"][0] == "hold"


def test_a_gap_between_two_requests_is_no_idleness() -> None:
    two = Two(has("w-1"))
    two.judge(0.0, waiting=0)
    assert two.judge(IDLE_SECONDS / 2)["other"] == ("hold", 1, "idle")


def test_the_last_instance_is_kept_while_it_serves() -> None:
    two = Two(has("w-1", BUSY), priority=9)
    two.judge(0.0, waiting=0)
    assert two.judge(9.0)["other"] == ("hold", 1, "capacity")


def test_a_model_without_an_instance_gets_one_of_several_that_serve() -> None:
    two = Two(has("w-1", BUSY), has("w-2", BUSY))
    action, target, rule, reason = two.explain(0.0)["other"]
    assert (action, target, rule) == ("in", 1, "yield")
    assert "waits needs an instance" in reason
    assert "it has none, this one 2" in reason


def test_nothing_more_is_given_while_an_instance_drains() -> None:
    two = Two(has("w-1", BUSY, state="draining"), has("w-2", BUSY), has("w-3", BUSY))
    assert two.judge(0.0)["other"] == ("hold", 2, "capacity")


def test_what_was_given_is_not_spare_for_the_one_that_gave_it() -> None:
    two = Two(has("w-1", BUSY), spare("w-2"))
    assert two.judge(0.0) == {"other": ("hold", 1, "capacity"), "waits": ("out", 1, "from-zero")}


def test_a_spare_worker_is_kept_for_ranks_of_which_another_comes() -> None:
    leaves, stays, free = has("w-1", BUSY, state="draining"), has("w-2", BUSY), spare("w-3")
    waits = {"other": ("hold", 1, "capacity"), "waits": ("hold", 0, "capacity")}
    assert Two(leaves, stays, free, ranks=2).judge(0.0) == waits
    assert Two(leaves, stays, free, ranks=3).judge(0.0)["other"][0] == "out"  # these two would not be enough


def test_no_more_is_taken_than_ranks_lack_beside_the_spare_workers() -> None:
    two = Two(*(has(f"w-{number}", BUSY) for number in range(3)), spare("w-3"), ranks=2, max_instances=3)
    assert two.judge(0.0)["other"] == ("in", 2, "yield")
    two.policy.asked(replace(decision(2, "in"), model="other"), 0.0)
    assert two.judge(0.1)["other"] == ("hold", 3, "asked")
    two.instances = (has("w-0", BUSY, state="draining"), *two.instances[1:])
    two.policy.planned(replace(decision(2, "in"), model="other"))
    assert two.judge(0.2)["other"] == ("hold", 2, "capacity")


def test_nothing_is_given_of_which_no_instance_comes() -> None:
    instances = has("w-1", BUSY), has("w-2", BUSY)
    assert Two(*instances, ranks=3, max_instances=2).judge(0.0)["other"] == ("hold", 2, "within")
    # A spare worker beside what one gives is enough for two ranks, so it is kept, also from who would have more.
    assert Two(*instances, spare("w-3"), ranks=2).judge(0.0)["other"] == ("in", 1, "yield")
    assert Two(*instances, spare("w-3"), ranks=3).judge(0.0)["other"] == ("out", 3, "decode")


def test_a_donor_keeps_by_each_rule_what_that_rule_leaves_it() -> None:
    one = donor("a", instances=6, workers=2, minimum=0, low=3, high=4)
    assert [one.could_give(rule) for rule in (1, 2, 3)] == [4, 6, 10]
    assert donor("a", instances=2, minimum=2).could_give(3) == 0


@pytest.mark.parametrize("priority", [-1, 0])
def test_a_model_of_a_higher_priority_keeps_what_it_needs(priority: int) -> None:
    two = Two(has("w-1", BUSY), has("w-2", BUSY), priority=priority)
    assert two.judge(0.0)["other"][2] == ("yield" if priority == 0 else "capacity")


def test_nobody_goes_below_the_minimum() -> None:
    for minimum, engine in ((1, load()), (2, BUSY)):
        two = Two(*(has(f"w-{number}", engine) for number in range(minimum)), priority=9, min_instances=minimum)
        two.judge(0.0, waiting=0)
        assert two.judge(9.0)["other"][0] == "hold"


def test_a_spare_worker_is_taken_first() -> None:
    two = Two(has("w-1"), spare("w-2"))
    two.judge(0.0, waiting=0)
    assert two.judge(5.0) == {"other": ("hold", 1, "idle"), "waits": ("out", 1, "from-zero")}


def test_an_instance_whose_worker_has_no_room_is_left_alone() -> None:
    two = Two(has("w-1", arena_bytes=SIZE - 1))
    two.judge(0.0, waiting=0)
    assert two.judge(5.0)["other"] == ("hold", 1, "idle")


def test_of_one_spare_worker_the_model_of_higher_priority_asks_first() -> None:
    two = Two(spare("w-1"), priority=1)
    assert list(two.judge(0.0)) == ["waits", "other"]


def donor(model: str, **more: object) -> Donor:
    common = {"instances": 2, "idle_seconds": None, "surplus_seconds": None, "workers": 1, "arena_bytes": SIZE}
    return Donor(model, **{**common, **more})  # type: ignore[arg-type]


def lack(model: str = "waits", wanted: int = 1, least: int = 1, **more: object) -> Lack:
    return Lack(model, wanted, least, SIZE, **more)  # type: ignore[arg-type]


def taken(lacks: list[Lack], donors: list[Donor], freeing: int = 0) -> dict[str, str]:
    return {model: given.to for model, given in choose_donors(lacks, donors, freeing).items()}


def test_the_longest_idle_model_gives_first_and_no_more_than_is_lacked() -> None:
    idle, later = donor("idle", idle_seconds=9.0), donor("later", idle_seconds=2.0)
    assert taken([lack()], [later, idle]) == {"idle": "waits"}
    assert taken([lack()], [later, idle], freeing=1) == {}
    assert taken([lack("large", wanted=2)], [later, idle]) == {"idle": "large", "later": "large"}


def test_what_is_not_idle_is_given_up_to_the_least_that_is_lacked() -> None:
    donors = [donor(name, surplus_seconds=SURPLUS_SECONDS) for name in ("a", "b")]
    assert taken([lack(wanted=2, least=1)], donors) == {"a": "waits"}
    assert taken([lack(wanted=2, least=1)], [*donors, donor("c", idle_seconds=IDLE_SECONDS)]) == {"c": "waits"}
    assert taken([lack()], [donor("a", surplus_seconds=SURPLUS_SECONDS / 2)]) == {}


def test_the_lowest_priority_is_taken_from_first_and_the_highest_is_served_first() -> None:
    donors = [donor("a", priority=1), donor("b", priority=0)]
    assert taken([lack("high", priority=2)], donors) == {"b": "high"}
    assert taken([lack("low", priority=1), lack("high", priority=2)], donors[1:]) == {"b": "high"}


class Pool:
    """Models with needs that stay as they are, and what each has of the pool."""

    def __init__(self, models: Mapping[str, tuple[int, int, int]], instances: Mapping[str, int]) -> None:
        self.models = models  # low, high, priority
        self.instances = dict(instances)

    def move(self) -> bool:
        """Whether anybody gives: each instance goes to whoever it was given for."""
        lacks, donors = [], []
        for name, (low, high, priority) in self.models.items():
            now = self.instances[name]
            if now < low:
                middle = (low + high + 1) // 2
                lacks.append(Lack(name, middle - now, low - now, SIZE, priority, has_none=now == 0))
            if now:
                idle, surplus = (inf if now > high else None), (inf if now > low else None)
                donors.append(Donor(name, now, idle, surplus, 1, SIZE, priority))
        given = choose_donors(lacks, donors, freeing=0)
        for name, one in given.items():
            self.instances[name] -= 1
            self.instances[one.to] += 1
        return bool(given)


NEEDS = st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(-1, 2))


@given(st.lists(st.tuples(NEEDS, st.integers(0, 6)), min_size=2, max_size=6))
def test_under_steady_load_instances_come_to_rest(drawn: list[tuple[tuple[int, int, int], int]]) -> None:
    models = {f"m{number}": (low, low + more, priority) for number, ((low, more, priority), _) in enumerate(drawn)}
    pool = Pool(models, {f"m{number}": instances for number, (_, instances) in enumerate(drawn)})
    total = sum(pool.instances.values())
    rounds = 0
    while pool.move():
        rounds += 1
        assert rounds <= total * len(models), "they go in circles"
    assert sum(pool.instances.values()) == total
    for name, (low, _, priority) in models.items():
        if pool.instances[name] < low:
            assert all(pool.instances[other] <= 1 for other, (_, _, less) in models.items() if less < priority)
