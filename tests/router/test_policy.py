"""Which instance serves which request, in which order, and the answer to a request that no instance can serve."""

import pytest
from msgspec import structs

from livescale.services.router.effects import AdmitTo, FinishRequest, StopWork
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import QueueLoad
from livescale.shared.messages.requests import RequestsEnded
from tests.router.examples import NOW, admissions, admit, entry, hear, load, policy, report, request


def test_a_request_goes_to_the_least_loaded_instance_with_room() -> None:
    made = policy(report("a", load(running=1)), report("b"))
    assert admit(made, request("r-1")) == [("r-1", "b")]


def test_equal_instances_are_taken_in_order_of_their_ids() -> None:
    made = policy(report("b"), report("a"))
    assert admit(made, *(request(f"r-{n}") for n in range(4))) == [
        ("r-0", "a"),
        ("r-1", "b"),
        ("r-2", "a"),
        ("r-3", "b"),
    ]


def test_the_head_of_the_queue_is_not_overtaken_by_a_smaller_request() -> None:
    made = policy(report("a", load(slots=9, blocks=9, used=3)))
    assert admit(made, request("large", prompt=26), request("small", prompt=1)) == []


def test_models_do_not_wait_for_one_another() -> None:
    made = policy(report("a", load(slots=1)), report("b", model="n"))
    admitted = admit(made, request("m-1"), request("m-2"), request("n-1", model="n"))
    assert admitted == [("m-1", "a"), ("n-1", "b")]


def test_priority_goes_first_then_resumed_requests_then_arrival() -> None:
    made = policy()
    for one in (
        request("plain"),
        request("later"),
        request("resumed", generated=[5]),
        request("urgent", priority=-1),
        request("idle", priority=1),
    ):
        made.submit(one, NOW)
    hear(made, report("a", load(slots=9)), NOW)
    order = [id for id, _ in admissions(made.dispatch(NOW))]
    assert order == ["urgent", "resumed", "plain", "later", "idle"]


def test_submit_tells_how_many_are_ahead() -> None:
    made = policy()
    assert [made.submit(request(id, priority=p), NOW) for id, p in (("a", 0), ("b", 0), ("c", -1))] == [0, 1, 0]


@pytest.mark.parametrize(
    ("submitted", "code", "words"),
    [
        (request("r-1", model="x"), 404, "'x' is not registered"),
        (request("r-1", model="broken"), 503, "no such file"),
        (request("r-1", deadline=NOW), 504, "deadline"),
        (request("twice"), 409, "already here"),
    ],
)
def test_what_cannot_be_queued_is_refused(submitted: object, code: int, words: str) -> None:
    made = policy()
    made.on_models([entry("m"), entry("broken", state="failed", error="no such file")])
    made.submit(request("twice"), NOW)
    with pytest.raises(Refusal, match=words) as refused:
        made.submit(submitted, NOW)  # type: ignore[arg-type]
    assert refused.value.code == code


def test_what_waits_for_a_model_that_turns_out_broken_ends_with_its_error() -> None:
    made = policy()
    made.submit(request("r-1"), NOW)
    made.submit(request("r-2", model="n"), NOW)
    broken = entry("m", state="failed", error="cut short")
    error = "model 'm' could not be read: cut short"
    assert made.on_models([broken, entry("n")]) == [FinishRequest("gateway-0", "r-1", 0, "error", error, 503)]
    assert made.depths() == {"m": 0, "n": 1}


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    made = policy(max_waiting=2)
    made.submit(request("r-1"), NOW)
    made.submit(request("r-2"), NOW)
    with pytest.raises(Refusal, match="2 requests") as refused:
        made.submit(request("r-3"), NOW)
    assert (refused.value.code, refused.value.retry_after_ms) == (429, 1000)
    made.submit(request("other", model="n"), NOW)


@pytest.mark.parametrize("code", [409, 429, 503])
def test_a_refused_admission_goes_back_to_the_head_and_elsewhere(code: int) -> None:
    made = policy(report("a"), report("b"))
    made.submit(request("r-1"), NOW)
    [first] = made.dispatch(NOW)
    assert isinstance(first, AdmitTo)
    made.submit(request("r-2"), NOW)
    assert made.refused(first, code, "not now") == []
    effects = made.dispatch(NOW)
    assert admissions(effects) == [("r-1", "b"), ("r-2", "b")]
    assert isinstance(effects[0], AdmitTo)
    assert effects[0].attempt == 1


def test_an_instance_that_refused_is_asked_again_after_its_next_report() -> None:
    made = policy(report("a"))
    made.submit(request("r-1"), NOW)
    [effect] = made.dispatch(NOW)
    assert isinstance(effect, AdmitTo)
    made.refused(effect, 429, "full")
    assert made.dispatch(NOW) == []
    hear(made, report("a"), NOW + 0.5)
    assert admissions(made.dispatch(NOW + 0.5)) == [("r-1", "a")]


def test_a_request_that_a_worker_calls_wrong_ends_with_that_error() -> None:
    made = policy(report("a"))
    made.submit(request("r-1", generated=[7, 8]), NOW)
    [effect] = made.dispatch(NOW)
    assert isinstance(effect, AdmitTo)
    assert made.refused(effect, 400, "bad") == [FinishRequest("gateway-0", "r-1", 2, "error", "bad", 400)]
    assert made.dispatch(NOW) == []


def test_a_request_that_never_fits_is_refused() -> None:
    made = policy(report("a", load(blocks=4)), report("b", load(blocks=5)))
    with pytest.raises(Refusal, match="need room for 36 tokens; the largest instance has 20") as refused:
        made.submit(request("huge", prompt=30), NOW)
    assert refused.value.code == 400
    assert made.depths()["m"] == 0


def test_a_request_that_turns_out_not_to_fit_ends_when_an_instance_appears() -> None:
    made = policy()
    made.submit(request("huge", prompt=30), NOW)
    hear(made, report("a", load(blocks=4)))
    [effect] = made.dispatch(NOW)
    assert isinstance(effect, FinishRequest)
    assert (effect.finish_reason, effect.code) == ("error", 400)
    assert effect.error is not None
    assert "need room for 36 tokens; the largest instance has 16" in effect.error


def test_a_request_past_its_deadline_in_the_queue_ends_so() -> None:
    made = policy()
    made.submit(request("r-1", deadline=NOW + 1), NOW)
    made.submit(request("r-2"), NOW)
    assert made.expire(NOW + 0.9) == []
    assert made.expire(NOW + 1) == [FinishRequest("gateway-0", "r-1", 0, "deadline", None)]
    assert made.loads(NOW + 1)[0].waiting_requests == 1


def test_cancelling_takes_a_request_out_of_the_queue_or_stops_its_worker() -> None:
    made = policy(report("a", load(slots=1)))
    admit(made, request("runs"), request("waits"))
    assert made.cancel("waits") == []
    assert made.cancel("runs") == [StopWork("a", "runs", "cancelled")]
    assert made.cancel("unknown") == []
    made.on_ended(RequestsEnded(worker="a", request_ids=["runs"]))
    assert made.dispatch(NOW) == []


def test_cancelling_during_the_admission_stops_the_request_once_it_is_in() -> None:
    made = policy(report("a"))
    made.submit(request("r-1"), NOW)
    made.dispatch(NOW)
    assert made.cancel("r-1") == []
    assert made.admitted("a", "r-1") == [StopWork("a", "r-1", "cancelled")]


def test_cancelled_while_it_is_refused_it_does_not_come_back() -> None:
    made = policy(report("a"))
    made.submit(request("r-1"), NOW)
    [effect] = made.dispatch(NOW)
    assert isinstance(effect, AdmitTo)
    made.cancel("r-1")
    assert made.refused(effect, 503, "full") == []
    hear(made, report("a"), NOW)
    assert made.dispatch(NOW) == []


def test_the_queues_load_counts_what_waits_and_what_runs() -> None:
    made = policy(report("a", load(slots=1)))
    admit(made, request("r-1"))
    admit(made, request("r-2", prompt=3, generated=[1]), request("r-3"))
    queues = [
        QueueLoad(model="m", waiting_requests=2, waiting_tokens=14, oldest_seconds=2, running=1),
        QueueLoad(model="n", waiting_requests=0, waiting_tokens=0, oldest_seconds=0, running=0),
    ]
    assert made.loads(NOW + 2) == [structs.replace(queue, arriving_tokens_per_second=0.0) for queue in queues]


def test_the_queues_load_says_how_fast_prompts_came_in_the_last_second() -> None:
    made = policy(report("a"))
    made.submit(request("r-1", prompt=30), NOW)
    made.submit(request("r-2", prompt=3, generated=[1]), NOW + 0.5)
    rates = [made.loads(NOW + at)[0].arriving_tokens_per_second for at in (0.6, 1.2, 1.6)]
    assert rates == [34.0, 4.0, 0.0]


def test_it_is_settled_while_nothing_waits_and_no_queue_changes() -> None:
    made = policy()
    assert not made.is_settled
    assert (made.dispatch(NOW), made.is_settled) == ([], True)
    made.on_models([entry("m")])
    assert not made.is_settled
    made.dispatch(NOW)
    made.submit(request("r-1"), NOW)
    assert not made.is_settled
    assert (made.dispatch(NOW), made.is_settled) == ([], False)  # no instance is there
    hear(made, report("w-1"))
    assert not made.is_settled
    [effect] = made.dispatch(NOW)
    made.dispatch(NOW)
    assert made.is_settled
    assert isinstance(effect, AdmitTo)
    made.refused(effect, 429, "full")
    assert not made.is_settled
    made.cancel("r-1")
    assert (made.dispatch(NOW), made.is_settled) == ([], True)
    made.on_report(report("w-1", state="draining"), NOW)
    assert not made.is_settled
