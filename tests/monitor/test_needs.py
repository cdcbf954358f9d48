import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.monitor.needs import Need, Unknown, need_at_once, wanted_spares, weigh
from livescale.shared.messages.model_spec import ScalingBounds
from tests.monitor.reports import observed, spec


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
        # 2,500 tokens a second arrive at 1,000 tokens/s: three keep up, though nothing waits.
        ({"arriving_rate": 2500.0}, "prefill", 1, 3),
        ({"arriving_rate": 2500.0, "waiting_tokens": 700, "waiting_requests": 1}, "prefill", 3, 3),  # or they wait on
        ({"arriving_rate": 2500.0, "waiting_tokens": 2100, "waiting_requests": 1}, "prefill", 3, 5),
        ({"arriving_rate": None, "waiting_tokens": 700, "waiting_requests": 1}, "prefill", 1, 2),
        ({"arriving_rate": 2500.0, "prefill_rate": None}, "prefill", 1, 1),
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


def test_the_reason_tells_how_many_keep_up_with_what_arrives() -> None:
    need = weigh(observed(arriving_rate=2500.0), spec())
    assert need == Need("prefill", 1, 3, "no prompt waits; 3 keep up with 2500 tokens/s that arrive")


@pytest.mark.parametrize(("waiting", "count"), [(0, 0), (1, 1), (500, 1), (501, 2), (1000, 2), (2100, 5)])
def test_where_one_can_be_had_at_once_as_many_are_needed_as_compute_what_waits_in_half_a_second(
    waiting: int, count: int
) -> None:
    need = need_at_once(observed(waiting_tokens=waiting, arriving_rate=2500.0), ScalingBounds())
    assert isinstance(need, Need)
    assert (need.low, need.high) == (count, count), "what is still to come counts for nothing"
    assert need.reason.endswith("a spare worker keeps the parameters")


def test_at_what_rate_prompts_are_computed_has_to_be_known_for_that() -> None:
    assert isinstance(need_at_once(observed(waiting_tokens=1, prefill_rate=None), ScalingBounds()), Unknown)


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


def test_no_spares_are_wanted_for_what_instances_that_drain_can_do() -> None:
    seen = observed(instances=1, spare=0, recallable=2)
    assert wanted_spares(seen, Need("prefill", 3, 5, "prompts wait"), 1) == 1


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
