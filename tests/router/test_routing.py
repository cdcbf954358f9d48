"""Where requests go that follow others, and turns of instances: requests wait at each of them, however loaded."""

from msgspec.structs import replace

from livescale.services.router.admission import RouterLimits
from livescale.services.router.policy import RouterPolicy
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import EngineLoad, WorkerReport
from livescale.shared.messages.requests import Submit
from tests.router.examples import NOW, admit, entry, hear, load, policy, rated, report, request

PROMPT = 100


def keeps(slots: int = 16) -> EngineLoad:
    """The load of an instance that keeps prompts, and prefills as much as one of them in the time that is allowed."""
    return replace(rated(2 * PROMPT, slots), keeps_prefixes=True, kv_blocks_total=1000)


def choices(count: int = 8) -> list[Submit]:
    """The later choices of a prompt, whose first is "0"."""
    return [request(str(number), prompt=PROMPT, follows="0") for number in range(1, count)]


def test_choices_follow_the_first_at_once_though_another_instance_is_idle() -> None:
    made = policy(report("a", keeps()), report("b", keeps()))
    assert admit(made, request("0", prompt=PROMPT)) == [("0", "a")]
    assert admit(made, *choices()) == [(str(number), "a") for number in range(1, 8)]
    made.check_invariants()


def test_they_are_as_good_as_prefilled() -> None:
    made = policy(report("a", keeps()))
    admit(made, request("0", prompt=PROMPT))
    hear(made, report("a", replace(keeps(), running_requests=1)))  # nothing is left to prefill
    admit(made, *choices())
    assert admit(made, request("other", prompt=PROMPT)) == [("other", "a")]


def test_without_a_slot_beside_the_first_they_go_elsewhere() -> None:
    made = policy(report("a", keeps(slots=2)), report("b", keeps(slots=2)))
    admit(made, request("0", prompt=PROMPT))
    assert admit(made, *choices(4)) == [("1", "a"), ("2", "b")]
    assert made.depths()["m"] == 1


def test_what_keeps_no_prompts_gets_them_as_any_other() -> None:
    fresh = replace(keeps(), keeps_prefixes=False)
    made = policy(report("a", fresh), report("b", fresh))
    admit(made, request("0", prompt=PROMPT))
    assert admit(made, *choices()) == [("1", "b")], "more would wait for long there"


def test_they_follow_a_first_one_that_was_moved() -> None:
    made = policy(report("a", keeps()), report("b", keeps()))
    admit(made, request("0", prompt=PROMPT))
    made.on_moved(RequestsMoved(worker="b", previous="a", request_ids=["0"]), NOW)
    assert admit(made, *choices(3)) == [("1", "b"), ("2", "b")]


def test_what_follows_a_request_that_nobody_knows_goes_where_there_is_room() -> None:
    made = policy(report("a", keeps()), report("b", keeps()))
    assert admit(made, *choices(3)) == [("1", "a"), ("2", "b")]


def test_an_instance_that_only_decodes_by_now_gets_none() -> None:
    made = policy(report("a", keeps()), report("b", keeps()), disaggregates=True)
    admit(made, request("0", prompt=PROMPT))
    hear(made, report("a", keeps(), role="decode"))
    assert admit(made, *choices(2)) == [("1", "b")]


def turns(*reports: WorkerReport) -> RouterPolicy:
    made = RouterPolicy(RouterLimits(routing="round-robin"), 1000)
    made.on_models([entry("m"), entry("n")])
    for one in reports:
        assert hear(made, one) == []
    return made


def test_instances_take_turns_whatever_they_run() -> None:
    made = turns(report("a", load(running=2, slots=2)), report("b"), report("c"))
    admitted = admit(made, *(request(f"r-{n}") for n in range(5)))
    assert [worker for _, worker in admitted] == ["a", "b", "c", "a", "b"]


def test_the_turns_of_models_are_apart() -> None:
    made = turns(report("a"), report("b"), report("x", model="n"), report("y", model="n"))
    admitted = admit(made, request("1"), request("2", model="n"), request("3"), request("4", model="n"))
    assert dict(admitted) == {"1": "a", "3": "b", "2": "x", "4": "y"}


def test_an_instance_that_left_loses_its_turn_only() -> None:
    made = turns(report("a"), report("b"), report("c"))
    assert admit(made, request("1")) == [("1", "a")]
    hear(made, report("b", state="draining"))
    assert [worker for _, worker in admit(made, request("2"), request("3"))] == ["c", "a"]


def test_a_conversation_does_not_keep_its_instance() -> None:
    made = turns(report("a"), report("b"))
    first, second = request("1", context_id="c"), request("2", context_id="c", follows="1")
    assert [worker for _, worker in (*admit(made, first), *admit(made, second))] == ["a", "b"]


def test_a_request_that_no_turn_could_ever_run_waits_for_none() -> None:
    made = turns(report("a", load(blocks=1)), report("b"))
    assert [worker for _, worker in admit(made, request("1"), request("2"))] == ["b", "b"]
