import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.services.monitor.needs import (
    IDLE_SECONDS,
    Donor,
    Lack,
    Need,
    Unknown,
    choose_donors,
    wanted_spares,
    weigh,
)
from livescale.services.monitor.policy import RetryTimes, ScalingPolicy
from livescale.services.monitor.signals import Signals
from livescale.shared.messages.membership import EngineLoad, QueueLoad, RouterReport, WorkerReport
from livescale.shared.messages.parameters import ModelSpec, ScalingBounds
from livescale.shared.messages.registry import ModelEntry
from tests.monitor.reports import COMMON, SIZE, decision, load, observed, record, serving, spare, spec

DONOR = Donor("idle", idle_seconds=9.0, workers=1, arena_bytes=SIZE)
LACK = Lack("waits", workers=1, rank_bytes=SIZE)


@pytest.mark.parametrize(
    ("signals", "rule", "low", "high"),
    [
        ({}, "prefill", 1, 1),  # nothing to do: the configured minimum
        # 2,100 tokens at 1,000 tokens/s: within 0.7 s 3 instances, within 0.5 s 5.
        ({"waiting_tokens": 2100, "waiting_requests": 1}, "prefill", 3, 5),
        ({"waiting_tokens": 700, "waiting_requests": 1}, "prefill", 1, 2),
        # 9 of 10 slots are below 0.95 and above 0.75.
        ({"running_requests": 9}, "decode", 1, 2),
        ({"running_requests": 10}, "decode", 2, 2),
        ({"running_requests": 10, "waiting_requests": 20}, "decode", 4, 4),
        ({"kv_blocks_used": 99}, "decode", 2, 2),
        ({"kv_blocks_used": 300, "running_requests": 1}, "decode", 4, 4),
        # The larger of both rules.
        ({"waiting_tokens": 2100, "waiting_requests": 1, "running_requests": 40}, "decode", 5, 6),
        ({"waiting_tokens": 3500, "waiting_requests": 1, "running_requests": 10}, "prefill", 5, 7),
        # Never beyond what is configured.
        ({"waiting_tokens": 99_000, "waiting_requests": 1}, "prefill", 8, 8),
    ],
)
def test_the_need_is_that_of_the_rule_that_asks_for_the_most(
    signals: dict[str, float], rule: str, low: int, high: int
) -> None:
    need = weigh(observed(**signals), spec())
    assert isinstance(need, Need)
    assert (need.rule, need.low, need.high) == (rule, low, high)


@pytest.mark.parametrize(
    ("instances", "spare", "ranks", "lacks"),
    [(4, 0, 1, 0), (3, 0, 1, 0), (1, 0, 1, 3), (1, 2, 1, 1), (1, 5, 1, 0), (1, 2, 4, 4)],
)
def test_spares_are_wanted_for_what_a_model_lacks_and_no_spare_can_be(
    instances: int, spare: int, ranks: int, lacks: int
) -> None:
    seen = observed(instances=instances, spare=spare)
    assert wanted_spares(seen, Need("prefill", 3, 5, "prompts wait"), ranks) == lacks
    assert wanted_spares(seen, Unknown("nobody said anything"), ranks) is None


def test_fewer_than_the_minimum_is_a_need_whatever_else_is_unknown() -> None:
    need = weigh(observed(instances=1, stale="the router last reported long ago"), spec(min_instances=2))
    assert isinstance(need, Need)
    assert (need.rule, need.low) == ("minimum", 2)


@pytest.mark.parametrize(
    ("signals", "words"),
    [
        ({"stale": "worker-1 last reported 3.0 s ago"}, "worker-1 last reported"),
        ({"waiting_tokens": 10, "waiting_requests": 1, "prefill_rate": None}, "prefill rate"),
        ({"running_requests": 1, "max_requests": None, "kv_blocks": None}, "how many slots"),
    ],
)
def test_what_is_not_known_is_not_zero(signals: dict[str, object], words: str) -> None:
    need = weigh(observed(**signals), spec())
    assert isinstance(need, Unknown)
    assert words in need.reason


def test_what_is_known_can_ask_for_more_though_the_rest_is_unknown() -> None:
    need = weigh(observed(waiting_tokens=10, waiting_requests=1, prefill_rate=None, running_requests=10), spec())
    assert isinstance(need, Need)
    assert (need.rule, need.low) == ("decode", 2)


def test_a_request_for_a_model_without_instances_asks_for_one() -> None:
    unmeasured = {"prefill_rate": None, "max_requests": None, "kv_blocks": None}
    signals = observed(instances=0, waiting_tokens=10, waiting_requests=1, **unmeasured)
    need = weigh(signals, spec(min_instances=0))
    assert need == Need("from-zero", 1, 1, "1 requests wait and nothing serves")


def test_a_model_without_instances_and_requests_needs_none() -> None:
    need = weigh(observed(instances=0), spec(min_instances=0))
    assert isinstance(need, Need)
    assert (need.low, need.high) == (0, 0)


@given(
    waiting=st.integers(0, 100_000),
    running=st.integers(0, 500),
    blocks=st.integers(0, 5_000),
    rate=st.floats(1, 1e5),
    lo=st.floats(0.05, 1.0),
    width=st.floats(1.0, 3.0),
)
def test_the_range_is_ordered_and_within_limits(
    waiting: int, running: int, blocks: int, rate: float, lo: float, width: float
) -> None:
    bounds = ScalingBounds(prefill_lo=lo, prefill_hi=lo * width, decode_lo=lo / 2, decode_hi=min(1.0, lo / 2 * width))
    seen = observed(
        waiting_tokens=waiting,
        waiting_requests=min(waiting, 1),
        running_requests=running,
        kv_blocks_used=blocks,
        prefill_rate=rate,
    )
    need = weigh(seen, spec(bounds=bounds, min_instances=1, max_instances=50))
    assert isinstance(need, Need)
    assert 1 <= need.low <= need.high <= 50


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 100), st.integers(0, 100))
def test_more_load_never_needs_fewer_instances(waiting: int, more_waiting: int, running: int, more: int) -> None:
    def need(tokens: int, requests: int) -> Need:
        found = weigh(observed(waiting_tokens=tokens, waiting_requests=1, running_requests=requests), spec())
        assert isinstance(found, Need)
        return found

    less, greater = need(waiting, running), need(waiting + more_waiting, running + more)
    assert less.low <= greater.low
    assert less.high <= greater.high


class Two:
    """A model `waits` that has requests and nothing that serves, and a model `idle` with instances."""

    def __init__(self, *instances: WorkerReport, min_instances: int = 0, size: int = SIZE) -> None:
        self.signals = Signals(stale_seconds=2.0)
        self.policy = ScalingPolicy(self.signals, RetryTimes(asked_seconds=5.0, retry_seconds=1.0))
        self.instances = instances
        common = {**COMMON, "downscale_delay_s": 60.0, "downscale_to_zero_delay_s": 60.0}
        idle = ModelSpec(name="idle", path="/m", min_instances=min_instances, **common)  # type: ignore[arg-type]
        waits = ModelSpec(name="waits", path="/m", min_instances=0, **common)  # type: ignore[arg-type]
        entries = [ModelEntry(spec=each, state="ready", version="v", size_bytes=size) for each in (idle, waits)]
        self.signals.on_models(entries)

    def judge(self, now: float, waiting: int = 1) -> dict[str, tuple[str, int, str]]:
        for report in self.instances:
            self.signals.on_worker(report, now)
        queue = QueueLoad(model="waits", waiting_requests=waiting, waiting_tokens=0, oldest_seconds=0.0, running=0)
        self.signals.on_router(RouterReport(id="router-0", epoch=1, queues=[queue]), now)
        return {each.model: (each.action, each.target, each.rule) for each in self.policy.decide(now)}


def has(worker: str, engine: EngineLoad | None = None, **more: object) -> WorkerReport:
    return serving(worker, engine, **{"model": "idle", **more})


def test_a_model_that_waits_gets_an_idle_instance_of_another_at_once() -> None:
    two = Two(has("w-1"))
    assert two.judge(0.0, waiting=0)["idle"] == ("hold", 1, "idle")
    assert two.judge(5.0) == {"idle": ("in", 0, "yield"), "waits": ("hold", 0, "capacity")}


def test_it_is_asked_for_once() -> None:
    two = Two(has("w-1"), has("w-2"))
    two.judge(0.0, waiting=0)
    assert two.judge(5.0)["idle"] == ("in", 1, "yield")
    two.policy.asked(replace(decision(1, "in"), model="idle"), 5.0)
    assert two.judge(5.1)["idle"] == ("hold", 2, "asked")
    draining = replace(record("draining", ["w-1"], "in"), decision=replace(decision(1, "in"), model="idle"))
    two.signals.on_scale(draining)
    two.policy.planned(replace(decision(1, "in"), model="idle"))
    assert two.judge(9.0)["idle"][0] == "hold"


def test_a_gap_between_two_requests_is_no_idleness() -> None:
    two = Two(has("w-1"))
    two.judge(0.0, waiting=0)
    assert two.judge(IDLE_SECONDS / 2)["idle"] == ("hold", 1, "idle")


def test_what_serves_is_kept() -> None:
    two = Two(has("w-1", load(running_requests=8)))
    two.judge(0.0, waiting=0)
    assert two.judge(5.0)["idle"] == ("hold", 1, "within")


def test_the_minimum_is_kept() -> None:
    two = Two(has("w-1"), min_instances=1)
    two.judge(0.0, waiting=0)
    assert two.judge(5.0)["idle"] == ("hold", 1, "within")


def test_a_spare_worker_is_taken_first() -> None:
    two = Two(has("w-1"), spare("w-2"))
    two.judge(0.0, waiting=0)
    assert two.judge(5.0) == {"idle": ("hold", 1, "idle"), "waits": ("out", 1, "from-zero")}


def test_an_instance_whose_worker_has_no_room_is_left_alone() -> None:
    two = Two(has("w-1", arena_bytes=SIZE - 1))
    two.judge(0.0, waiting=0)
    assert two.judge(5.0)["idle"] == ("hold", 1, "idle")


def test_the_longest_idle_model_gives_first_and_no_more_than_is_lacked() -> None:
    later = Donor("later", idle_seconds=2.0, workers=1, arena_bytes=SIZE)
    assert choose_donors([LACK], [later, DONOR], freeing=0) == {"idle": "waits"}
    assert choose_donors([LACK], [later, DONOR], freeing=1) == {}
    large = Lack("large", workers=2, rank_bytes=SIZE)
    assert choose_donors([large], [later, DONOR], freeing=0) == {"idle": "large", "later": "large"}
