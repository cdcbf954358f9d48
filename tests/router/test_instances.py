"""An instance at the router: whether it has room for another request."""

import pytest

from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.requests import RequestsEnded
from tests.router.examples import NOW, admissions, admit, entry, hear, load, policy, rated, report, request


def test_what_was_admitted_counts_before_any_report_says_so() -> None:
    made = policy(report("a", load(slots=1)))
    assert admit(made, request("r-1"), request("r-2")) == [("r-1", "a")]
    hear(made, report("a", load(slots=1)), NOW + 0.1)  # sent before the admission arrived
    assert made.dispatch(NOW + 0.1) == []


def test_requests_that_an_earlier_router_admitted_count_too() -> None:
    made = policy(report("a", load(running=2)))
    assert admit(made, request("r-1")) == []
    hear(made, report("a", load(running=1)), NOW)
    assert admissions(made.dispatch(NOW)) == [("r-1", "a")]


def test_look_ahead_gives_an_instance_more_than_its_slots() -> None:
    made = policy(report("a", load(slots=1)), look_ahead=1)
    assert len(admit(made, *(request(f"r-{n}") for n in range(3)))) == 2


def test_an_instance_has_room_for_the_tokens_that_requests_have() -> None:
    made = policy(report("a", load(slots=9, blocks=9)))
    # 10 tokens are 3 blocks of 4; whether 6 more will follow is unknown.
    assert admit(made, *(request(f"r-{n}") for n in range(4))) == [("r-0", "a"), ("r-1", "a"), ("r-2", "a")]
    made.on_ended(RequestsEnded(worker="a", request_ids=["r-0"]))
    assert admissions(made.dispatch(NOW)) == [("r-3", "a")]


def test_what_was_generated_since_counts_by_the_workers_report() -> None:
    made = policy(report("a", load(slots=9, blocks=9)))
    admit(made, request("r-0"), request("r-1"))
    hear(made, report("a", load(slots=9, blocks=9, running=2, used=7)), NOW)
    assert admit(made, request("r-2", prompt=9)) == []
    hear(made, report("a", load(slots=9, blocks=9, running=2, used=6)), NOW)
    assert admissions(made.dispatch(NOW)) == [("r-2", "a")]


def test_an_instance_where_somebody_waits_for_kv_blocks_gets_nothing_more() -> None:
    made = policy(report("a"), report("b", load(slots=9, running=5)))
    hear(made, report("a", load(full=True)), NOW)
    assert admit(made, request("r-1")) == [("r-1", "b")]
    hear(made, report("a"), NOW)
    assert admit(made, request("r-2")) == [("r-2", "a")]


def test_a_request_that_fits_one_instance_and_not_the_other_waits_for_it() -> None:
    made = policy(report("a", load(blocks=100, slots=1)), report("b", load(blocks=4)))
    assert admit(made, request("r-1", prompt=30), request("r-2", prompt=30)) == [("r-1", "a")]
    made.on_ended(RequestsEnded(worker="a", request_ids=["r-1"]))
    assert admissions(made.dispatch(NOW)) == [("r-2", "a")]


@pytest.mark.parametrize(("parked", "taken"), [(None, 5), ("old", 5), ("v", 3)])
def test_an_instance_is_given_few_prompts_ahead_where_a_spare_worker_could_take_the_others_at_once(
    parked: str | None, taken: int
) -> None:
    made = policy(report("a", rated(100, slots=9)))
    made.on_models([entry("m", version="v")])
    made.on_report(WorkerReport(id="s", epoch=1, state="spare", parked=parked), NOW)
    # Five prompts of 10 tokens take half a second, and with three it is more than a quarter.
    assert len(admit(made, *(request(f"r-{number}", prompt=10) for number in range(8)))) == taken
