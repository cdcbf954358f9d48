"""What the router refuses at once, and with which code."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.services.router import admission
from livescale.services.router.admission import LONGEST_RETRY_MS, REPLACEMENT_SECONDS, SHORTEST_RETRY_MS, WorkerCapacity
from livescale.services.router.effects import AdmitTo, Effect, FinishRequest
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Holding, Member, WorkerReport
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.requests import Submit
from tests.router.examples import NOW, entry, hear, lease, load, policy, rated, report, request

LATER = NOW + 5  # long enough to have heard everyone


def test_tokens_are_bounded_as_well_as_requests_but_one_request_always_may_wait() -> None:
    made = policy(max_waiting_tokens=100)
    made.submit(request("long", prompt=500), NOW)
    with pytest.raises(Refusal, match="1 requests with 500 tokens for 'm'") as refused:
        made.submit(request("short", prompt=1), NOW)
    assert refused.value.code == 429


def test_a_full_queue_says_when_it_will_be_worked_off() -> None:
    made = policy(report("a", rated(100.0, slots=1)), max_waiting=2)
    for index in range(2):
        made.submit(request(f"r-{index}", prompt=200), NOW)
    with pytest.raises(Refusal) as refused:
        made.submit(request("r-3"), NOW)
    assert (refused.value.code, refused.value.retry_after_ms) == (429, 4000)


def test_a_resumed_request_is_never_one_too_many() -> None:
    made = policy(max_waiting=1)
    made.submit(request("r-1"), NOW)
    assert made.submit(request("r-2", generated=[1]), NOW) == 0


def test_an_impossible_model_is_refused_at_once_and_without_a_time_to_come_back() -> None:
    made = policy(report("a", arena_bytes=10))
    made.on_models([entry("m", size_bytes=100)])
    made.expire(NOW)
    with pytest.raises(Refusal, match="'m' cannot be loaded: it needs 100 bytes") as refused:
        made.submit(request("r-1"), LATER)
    assert (refused.value.code, refused.value.retry_after_ms) == (503, None)
    made.submit(request("r-2", generated=[1]), LATER)  # was accepted before


def test_requests_for_a_model_that_becomes_impossible_are_told_so() -> None:
    made = policy(report("a", state="loading", arena_bytes=100))
    made.on_models([entry("m", size_bytes=100), entry("n")])
    made.expire(NOW)
    made.submit(request("r-1", deadline=NOW + 999), NOW)
    made.submit(request("r-2", generated=[1], deadline=NOW + 999), NOW)
    made.submit(request("r-3", model="n", deadline=NOW + 999), NOW)
    made.on_lease(lease("a", "dead"))
    hear(made, report("b", arena_bytes=30, model=None, instance=None, state="spare"), NOW)
    assert made.expire(NOW + REPLACEMENT_SECONDS - 1) == [], "the one that died may be replaced"
    why = "model 'm' cannot be loaded: it needs 100 bytes, and the largest worker has 30"
    assert made.expire(NOW + REPLACEMENT_SECONDS) == [FinishRequest("gateway-0", "r-1", 0, "error", why, 503)]
    assert made.depths() == {"m": 1, "n": 1}, "what was accepted before waits for a replacement, till its deadline"


def test_a_model_whose_only_worker_died_is_held_for_its_replacement() -> None:
    made = policy(report("a"))
    made.expire(NOW)
    made.on_lease(lease("a", "dead"))
    assert made.submit(request("r-1"), LATER) == 0
    with pytest.raises(Refusal, match="no worker is alive"):
        made.submit(request("r-2", deadline=NOW + 999), NOW + REPLACEMENT_SECONDS + 1)


def test_a_router_that_takes_office_when_every_worker_is_dead_waits_for_their_replacements() -> None:
    made = policy()
    made.expire(NOW)
    dead = Member(service="worker", id="a", pid=1, host="h", epoch=3, lease="dead")
    made.on_members([dead, replace(dead, service="gateway", id="gateway-0")], NOW)
    assert made.submit(request("r-1"), LATER) == 0
    with pytest.raises(Refusal, match="no worker is alive"):
        made.submit(request("r-2", deadline=NOW + 999), NOW + REPLACEMENT_SECONDS + 1)


def test_a_router_that_was_away_listens_again_before_it_says_that_nobody_is_there() -> None:
    made = policy()
    made.expire(NOW)
    made.was_away(LATER)
    assert made.submit(request("r-1"), LATER) == 0
    made.expire(LATER + 1)
    assert made.depths()["m"] == 1


def test_a_dead_gateway_is_no_worker_that_may_come_back() -> None:
    made = policy()
    made.expire(NOW)
    made.on_lease(lease("gateway-0", "dead", service="gateway"))
    with pytest.raises(Refusal, match="no worker is alive"):
        made.submit(request("r-1"), LATER)


def test_a_known_request_is_told_so_even_where_the_queue_is_full() -> None:
    made = policy(max_waiting=1)
    made.submit(request("r-1"), NOW)
    with pytest.raises(Refusal) as refused:
        made.submit(request("r-1"), NOW)
    assert refused.value.code == 409


def test_a_request_too_large_for_what_was_seen_is_refused_even_at_zero_instances() -> None:
    made = policy()
    hear(made, report("a", load(blocks=4)))
    made.on_report(report("a", state="spare", instance=None, model=None), NOW)
    with pytest.raises(Refusal, match="ask for fewer tokens") as refused:
        made.submit(request("r-1", prompt=30), NOW)
    assert refused.value.code == 400


def capacity(*reports: WorkerReport, now: float = NOW) -> WorkerCapacity:
    made = WorkerCapacity(default_retry_ms=1000)
    made.watch(NOW)
    for one in reports:
        made.heard(one, now)
    return made


def loading(worker: str, ready: int, total: int = 4, plan: str = "s-1") -> WorkerReport:
    holding = Holding(model="m", version="v", ready=list(range(ready)), total=total)
    return report(worker, state="loading", holding=holding, plan_id=plan)


def test_a_model_that_fits_somewhere_is_possible_whoever_is_busy() -> None:
    made = capacity(report("a", model="n", arena_bytes=100), report("b", arena_bytes=10))
    assert made.why_impossible(entry("m", size_bytes=100), LATER) is None


def test_a_model_larger_than_every_worker_is_impossible_and_says_why() -> None:
    made = capacity(report("a", arena_bytes=10), report("b", arena_bytes=30))
    assert made.why_impossible(entry("m", size_bytes=100), LATER) == "it needs 100 bytes, and the largest worker has 30"


def test_without_any_worker_nothing_is_possible() -> None:
    assert capacity().why_impossible(entry("m"), LATER) == "no worker is alive; start one"


def test_a_router_that_has_just_begun_to_listen_does_not_judge() -> None:
    assert capacity().why_impossible(entry("m"), NOW + 1) is None
    assert WorkerCapacity(1000).why_impossible(entry("m"), LATER) is None


def test_a_dead_worker_may_be_replaced_for_a_while() -> None:
    made = capacity(report("a", arena_bytes=100))
    made.lost("a", 1, LATER)
    assert made.why_impossible(entry("m", size_bytes=100), LATER + REPLACEMENT_SECONDS - 1) is None
    assert (
        made.why_impossible(entry("m", size_bytes=100), LATER + REPLACEMENT_SECONDS) == "no worker is alive; start one"
    )


def test_so_may_one_that_died_before_this_router_had_heard_it() -> None:
    made = capacity()
    made.lost("a", 1, NOW)
    assert made.why_impossible(entry("m", size_bytes=100), NOW + REPLACEMENT_SECONDS - 1) is None
    assert made.why_impossible(entry("m", size_bytes=100), NOW + REPLACEMENT_SECONDS) == "no worker is alive; start one"
    made.lost("a", 1, NOW)
    made.heard(report("a", epoch=2, arena_bytes=30), NOW)
    assert "the largest worker has 30" in (made.why_impossible(entry("m", size_bytes=100), LATER) or "")


def test_news_of_an_earlier_death_does_not_count_against_its_successor() -> None:
    made = capacity(report("a", epoch=2, arena_bytes=100))
    made.lost("a", 1, NOW)
    assert made.why_impossible(entry("m", size_bytes=100), NOW + 60) is None


def test_the_room_for_a_request_is_the_largest_ever_seen_of_this_version() -> None:
    made = capacity(report("a", load(blocks=5), version="v"), report("b", load(blocks=9), version="v"))
    assert made.kv_tokens("m") == 36
    made.heard(report("a", load(blocks=2), version="w"), NOW)
    assert made.kv_tokens("m") == 8
    assert made.kv_tokens("n") is None


def test_fewer_prompts_are_given_ahead_while_a_spare_worker_keeps_the_parameters_of_this_version() -> None:
    def spare(id: str, parked: str | None) -> WorkerReport:
        return WorkerReport(id=id, epoch=1, state="spare", parked=parked)

    made, model = capacity(spare("a", None), spare("b", "old")), entry("m", version="v")
    assert made.ahead_seconds(model) == admission.AHEAD_SECONDS
    made.heard(spare("b", "v"), NOW)
    assert made.ahead_seconds(model) == admission.AHEAD_OF_PARKED_SECONDS
    assert made.ahead_seconds(entry("n")) == made.ahead_seconds(None) == admission.AHEAD_SECONDS
    made.heard(report("b"), NOW)  # it serves
    assert made.ahead_seconds(model) == admission.AHEAD_SECONDS
    made.heard(spare("b", "v"), NOW)
    made.lost("b", 1, NOW)
    assert made.ahead_seconds(model) == admission.AHEAD_SECONDS


@pytest.mark.parametrize(
    ("rates", "tokens", "expected"),
    [((1000.0,), 2000, 2000), ((1000.0, 3000.0), 2000, 500), ((1000.0, None), 2000, 1000), ((None,), 2000, 1000)],
    ids=["one instance", "two", "one of two not measured", "none measured"],
)
def test_what_waits_is_gone_when_it_is_prefilled(rates: tuple[float | None, ...], tokens: int, expected: int) -> None:
    made = capacity(*(report(f"w-{index}", rated(rate)) for index, rate in enumerate(rates)))
    assert made.retry_after_ms("m", tokens, NOW) == expected


def test_the_answer_is_neither_at_once_nor_in_an_hour() -> None:
    made = capacity(report("a", rated(1000.0)))
    assert made.retry_after_ms("m", 1, NOW) == SHORTEST_RETRY_MS
    assert made.retry_after_ms("m", 10**9, NOW) == LONGEST_RETRY_MS


def test_without_an_instance_the_load_under_way_decides_at_its_pace() -> None:
    made = capacity(loading("a", 0))
    assert made.retry_after_ms("m", 500, NOW + 1) == 1000  # nothing arrived yet: the default
    made.heard(loading("a", 1), NOW + 2)
    assert made.retry_after_ms("m", 500, NOW + 2) == 6000
    made.heard(loading("b", 1), NOW + 2)
    made.heard(loading("a", 2), NOW + 3)
    assert made.retry_after_ms("m", 500, NOW + 3) == 3000
    made.heard(loading("a", 1, plan="s-2"), NOW + 4)
    assert made.retry_after_ms("m", 500, NOW + 5) == 3000


def test_a_dead_loader_decides_nothing() -> None:
    made = capacity(loading("a", 1))
    made.lost("a", 1, NOW + 1)
    assert made.retry_after_ms("m", 500, NOW + 1) == 1000


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6)), max_size=4), st.integers(0, 10**9))
def test_there_is_always_an_answer_within_bounds(rates: list[float | None], tokens: int) -> None:
    made = capacity(*(report(f"w-{index}", rated(rate)) for index, rate in enumerate(rates)))
    assert SHORTEST_RETRY_MS <= made.retry_after_ms("m", tokens, NOW) <= LONGEST_RETRY_MS


def cut_for(ranks: int) -> ModelEntry:
    spec = ModelSpec(name="m", path="/m", tensor_parallel_size=ranks)
    return ModelEntry(spec=spec, state="ready", size_bytes=100)


def test_a_model_of_several_ranks_needs_as_many_workers_with_room_for_a_shard() -> None:
    made = capacity(report("a", arena_bytes=50), report("b", arena_bytes=50), report("c", arena_bytes=24))
    assert made.why_impossible(cut_for(2), LATER) is None
    few = "an instance is 3 workers (tensor_parallel_size), and 2 can have one"
    assert made.why_impossible(cut_for(3), LATER) == few
    assert made.why_impossible(cut_for(1), LATER) == "it needs 100 bytes, and the largest worker has 50"
    made.lost("b", 1, LATER)
    assert made.why_impossible(cut_for(2), LATER) is None


def max_tokens(effects: list[Effect]) -> list[tuple[str, int]]:
    return [(one.worker, one.request.max_tokens) for one in effects if isinstance(one, AdmitTo)]


def open_ended(id: str, prompt: int = 10, **more: Any) -> Submit:
    """A request whose client named no number of tokens: as many as the context has room for."""
    return request(id, prompt=prompt, max_tokens=1000, open_ended=True, **more)


def test_a_client_that_names_no_number_of_tokens_gets_what_the_largest_instance_has_room_for() -> None:
    made = policy(report("a", load(blocks=4)), report("b", load(blocks=5)))
    made.submit(open_ended("r-1"), NOW)
    assert max_tokens(made.dispatch(NOW)) == [("b", 10)]
    made = policy(report("a", load(blocks=1000)))
    made.submit(open_ended("r-1"), NOW)
    assert max_tokens(made.dispatch(NOW)) == [("a", 1000)]


def test_what_was_open_ended_is_fitted_anew_wherever_it_resumes() -> None:
    made = policy(report("a", load(blocks=5)))
    made.submit(open_ended("r-1"), NOW)
    [effect] = made.dispatch(NOW)
    assert isinstance(effect, AdmitTo)
    made.refused(effect, 503, "not now")
    hear(made, report("a", state="draining"))
    hear(made, report("b", load(blocks=10)))
    assert max_tokens(made.dispatch(NOW)) == [("b", 30)]


def test_what_has_more_tokens_than_fit_where_it_resumes_is_at_its_length() -> None:
    made = policy(report("a", load(blocks=5)))
    made.submit(open_ended("r-1", generated=[5] * 10), NOW)
    assert made.dispatch(NOW) == [FinishRequest("gateway-0", "r-1", 10, "length", None)]


def test_a_prompt_that_leaves_no_room_never_fits_whatever_is_asked() -> None:
    made = policy(report("a", load(blocks=4)))
    made.submit(open_ended("fits", prompt=15), NOW)
    with pytest.raises(Refusal, match="need room for 17 tokens; the largest instance has 16"):
        made.submit(open_ended("not", prompt=16), NOW)
