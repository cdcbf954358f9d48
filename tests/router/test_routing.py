"""Where requests go that follow others, and turns of instances: requests wait at each of them, however loaded."""

from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from livescale.services.router.admission import RouterLimits
from livescale.services.router.effects import AdmitTo, Lose
from livescale.services.router.policy import RouterPolicy
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import EngineLoad, Role, WorkerReport
from livescale.shared.messages.requests import RequestsEnded, Submit
from tests.router.examples import NOW, admit, entry, hear, lease, load, policy, rated, report, request

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


def test_a_request_goes_where_the_prompts_ahead_of_it_take_least_time() -> None:
    made = policy(report("a", rated(10_000, slots=9)), report("b", rated(10_000, slots=9)))
    long, short = request("long", prompt=90), [request(str(number)) for number in range(5)]
    assert admit(made, long, *short) == [("long", "a"), *((str(number), "b") for number in range(5))]
    hear(made, report("b", replace(rated(1_000, slots=9), waiting_tokens=50, waiting_requests=5)))
    assert admit(made, request("5")) == [("5", "a")], "b has less to do, and takes longer"


def test_where_no_prompt_waits_it_goes_to_the_one_with_most_room() -> None:
    slow, fast = replace(rated(1_000, slots=9), running_requests=1), replace(rated(10_000, slots=9), running_requests=2)
    assert admit(policy(report("a", fast), report("b", slow)), request("r")) == [("r", "b")]


def test_while_no_rate_is_known_it_goes_where_no_prompt_waits() -> None:
    made = policy(report("a", rated(None, slots=9)), report("b", rated(None, slots=4)))
    assert admit(made, request("0"), request("1"), request("2")) == [("0", "a"), ("1", "b"), ("2", "a")]


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


def pool(*reports: WorkerReport) -> RouterPolicy:
    return policy(*reports, disaggregates=True)


def pairs(made: RouterPolicy, *requests: Submit) -> list[tuple[str, str | None]]:
    """Submit, and return who prefills and who decodes each request that is admitted."""
    for one in requests:
        made.submit(one, NOW)
    effects = [effect for effect in made.dispatch(NOW) if isinstance(effect, AdmitTo)]
    for effect in effects:
        made.admitted(effect.worker, effect.request.request_id)
    made.check_invariants()
    return [(effect.worker, effect.decode) for effect in effects]


def prefill(id: str = "p", engine: EngineLoad | None = None, **more: object) -> WorkerReport:
    return report(id, engine or load(slots=9), role="prefill", **more)


def decode(id: str, engine: EngineLoad | None = None, **more: object) -> WorkerReport:
    return report(id, engine or load(slots=9), role="decode", **more)


def test_prompts_go_to_who_prefills_and_then_to_the_instance_with_most_free_blocks() -> None:
    made = pool(prefill(), decode("d", load(slots=9, used=20)), decode("e", load(slots=9, used=10)))
    assert pairs(made, request("r")) == [("p", "e")]


def test_what_was_promised_is_not_free() -> None:
    made = pool(prefill(), decode("d", load(slots=9, used=2)), decode("e", load(slots=9)))
    assert pairs(made, *(request(f"r{n}") for n in range(3))) == [("p", "e"), ("p", "d"), ("p", "e")]


def test_instances_on_the_same_machine_come_first() -> None:
    made = pool(prefill(host="a"), decode("d", host="b"), decode("e", load(slots=9, used=50), host="a"))
    assert pairs(made, request("r")) == [("p", "e")]


def test_who_prefills_decodes_itself_where_nobody_has_room() -> None:
    full = load(slots=9, used=98)
    for other in (decode("d", full), decode("d", load(slots=1, running=1)), decode("d", load(slots=9, full=True))):
        assert pairs(pool(prefill(), other), request("r")) == [("p", None)]


def test_a_request_that_begins_with_the_next_step_keeps_nobody_from_decoding_for_others() -> None:
    made = pool(prefill(), prefill("d"))
    assert pairs(made, request("a"), request("b")) == [("d", None), ("p", None)]
    # Its role changes between an admission and the step that begins it: no later report comes for half a second.
    begins = replace(load(slots=9), waiting_requests=1, waiting_tokens=10)
    hear(made, decode("d", begins))
    assert pairs(made, request("r")) == [("p", "d")]
    for full in (replace(load(slots=9, running=8), waiting_requests=1), replace(begins, kv_full=True)):
        hear(made, decode("d", full))
        assert pairs(made, request(f"s{full.kv_full}")) == [("p", None)]


def test_what_is_reserved_already_is_not_counted_twice() -> None:
    made = pool(prefill(), decode("d", load(slots=2, blocks=9)))
    assert pairs(made, request("r")) == [("p", "d")]
    hear(made, decode("d", replace(load(slots=2, blocks=9, used=3), reserved_requests=1, reserved_blocks=3)))
    assert pairs(made, request("s")) == [("p", "d")]
    assert pairs(made, request("t")) == [("p", None)]


def test_a_promise_ends_with_its_request_wherever_that_is_then() -> None:
    def after(act: str) -> list[tuple[str, str | None]]:
        made = pool(prefill(engine=load(slots=9)), decode("d", load(slots=1)))
        assert pairs(made, request("r"), request("s")) == [("p", "d"), ("p", None)]
        if act == "ended":
            made.on_ended(RequestsEnded(worker="p", request_ids=["r"]))
        elif act == "ended there":
            made.on_ended(RequestsEnded(worker="d", request_ids=["r"]))
        elif act == "moved and ended":
            made.on_moved(RequestsMoved(worker="d", previous="p", request_ids=["r"]), NOW)
            made.on_ended(RequestsEnded(worker="d", request_ids=["r"]))
        elif act == "moved":
            made.on_moved(RequestsMoved(worker="d", previous="p", request_ids=["r"]), NOW)
        return pairs(made, request("t"))

    for act in ("ended", "ended there", "moved and ended"):
        assert after(act) == [("p", "d")], act
    for act in ("nothing", "moved"):
        assert after(act) == [("p", None)], act


def test_a_request_is_lost_with_the_worker_that_has_it() -> None:
    made = pool(prefill(), decode("d"))
    assert pairs(made, request("r")) == [("p", "d")]
    assert made.on_lease(lease("d", "dead")) == []
    assert made.on_lease(lease("p", "dead")) == [Lose("gateway-0", "r", "p is gone: said so")]
    assert pairs(pool(prefill(), decode("d")), request("r")) == [("p", "d")]


def test_when_the_last_who_prefills_is_gone_those_who_decode_do_everything() -> None:
    made = pool(prefill(), decode("d"))
    made.on_lease(lease("p", "dead"))
    assert pairs(made, request("r")) == [("d", None)]


def test_when_the_last_who_decodes_is_gone_those_who_prefill_do_everything() -> None:
    made = pool(prefill(), decode("d"))
    made.on_lease(lease("d", "dead"))
    assert pairs(made, request("r")) == [("p", None)]


def test_an_instance_that_still_loads_takes_prompts_whatever_its_role_and_decodes_nothing() -> None:
    made = pool(prefill(engine=load(slots=1, running=1)), decode("d", state="live"))
    assert pairs(made, request("r")) == [("d", None)]
    assert pairs(pool(prefill(state="live"), decode("d")), request("r")) == [("p", None)]


def test_a_prompt_waits_for_who_prefills_as_long_as_one_is_there() -> None:
    made = pool(prefill(engine=load(slots=1, running=1)), decode("d"))
    assert pairs(made, request("r")) == []
    hear(made, prefill(engine=load(slots=1)))
    assert pairs(made) == [("p", "d")]


def test_an_instance_without_a_role_does_everything_and_helps_those_that_prefill() -> None:
    assert pairs(pool(report("c", load(slots=9))), request("r")) == [("c", None)]
    assert pairs(pool(report("q", load(slots=9)), prefill()), request("r")) == [("p", "q")]


def test_a_role_counts_from_the_next_request_on() -> None:
    made = pool(prefill(), decode("d"))
    assert pairs(made, request("r")) == [("p", "d")]
    hear(made, prefill("d", load(slots=9)))
    hear(made, decode("p", load(slots=9, running=1)))
    assert pairs(made, request("s")) == [("d", "p")]


def test_a_conversation_is_decoded_where_its_last_request_was() -> None:
    made = pool(prefill(), decode("d"), decode("e", load(slots=9, used=5)))
    assert pairs(made, request("r", context_id="c")) == [("p", "d")]
    made.on_moved(RequestsMoved(worker="d", previous="p", request_ids=["r"]), NOW)
    made.on_ended(RequestsEnded(worker="d", request_ids=["r"]))
    hear(made, decode("d", load(slots=9, used=50)))
    assert pairs(made, request("s", context_id="c")) == [("p", "d")]


def test_without_disaggregation_and_with_several_ranks_roles_change_nothing() -> None:
    assert pairs(policy(prefill(), decode("d")), request("r")) == [("d", None)]
    made = pool(prefill(), decode("d"))
    made.on_models([replace(entry("m"), spec=replace(entry("m").spec, tensor_parallel_size=2, disaggregation="on"))])
    assert pairs(made, request("r")) == [("d", None)]


def test_a_model_s_own_setting_goes_before_that_of_the_system() -> None:
    for disaggregates, own, expected in ((False, "on", ("p", "d")), (True, "off", ("d", None))):
        made = policy(prefill(), decode("d"), disaggregates=disaggregates)
        made.on_models([replace(entry("m"), spec=replace(entry("m").spec, disaggregation=own))])
        assert pairs(made, request("r")) == [expected]


ROLES: list[Role | None] = [None, "colocated", "prefill", "decode"]


@given(some.lists(some.sampled_from(ROLES), min_size=1, max_size=5), some.integers(1, 8))
def test_whatever_the_roles_as_many_requests_are_served_as_there_are_slots_among_who_prefills(
    roles: list[Role | None], count: int
) -> None:
    made = pool(*(report(f"w{n}", load(slots=2), role=role) for n, role in enumerate(roles)))
    able = [role for role in roles if role != "decode"] or roles
    placed = pairs(made, *(request(f"r{n}") for n in range(count)))
    assert 0 < len(placed) <= min(count, 2 * len(able))
    for worker, other in placed:
        assert other is None or (worker != other and roles[int(worker[1:])] == "prefill")
