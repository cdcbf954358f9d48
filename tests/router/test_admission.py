"""What the router refuses at once, and with which code."""

import pytest
from msgspec.structs import replace

from livescale.services.router.capacity import REPLACEMENT_SECONDS
from livescale.services.router.effects import FinishRequest
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Member
from tests.router.examples import NOW, entry, hear, lease, load, policy, rated, report, request

LATER = NOW + 5


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
