"""What becomes of a model's setting: who prefills, who decodes, and what the router orders."""

from msgspec.structs import replace

from livescale.services.router.admission import RouterLimits
from livescale.services.router.effects import AdmitTo, AssignRole
from livescale.services.router.forecast import Slos
from livescale.services.router.policy import RouterPolicy
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import StepSpeed, WorkerReport
from livescale.shared.messages.model_spec import Disaggregation
from livescale.shared.messages.requests import RequestsEnded
from tests.router.examples import NOW, entry, hear, load, report, request

STEPS = StepSpeed(
    step_seconds=0.0115,
    row_seconds=0.000129,
    prompt_tokens_per_second=14_500.0,
    beside_tokens=150.0,
    beside_seconds=0.004,
)
ENGINE = replace(load(slots=99, blocks=100_000), steps=STEPS, prefill_tokens_per_second=14_500.0)


def router(*reports: WorkerReport, own: Disaggregation | None = None, tbt: float = 0.0125) -> RouterPolicy:
    made = RouterPolicy(RouterLimits(10_000, look_ahead=0, disaggregation="auto", slos=Slos(1.0, tbt)), 1000)
    spec = replace(entry("m").spec, disaggregation=own)
    made.on_models([replace(entry("m"), spec=spec)])
    for one in reports:
        hear(made, one)
    return made


def three(**more: object) -> list[WorkerReport]:
    return [report(worker, ENGINE, role="colocated", **more) for worker in "abc"]


def played(made: RouterPolicy, seconds: float, *reports: WorkerReport) -> list[AssignRole]:
    """What is ordered while requests come, and end at once."""
    orders, came = list[AssignRole](), 0
    for tick in range(round(seconds * 10)):
        now = NOW + tick / 10
        for _ in range(2):
            came += 1
            made.submit(replace(request(f"r{came}", prompt=900), deadline=now + 60), now)
        for effect in made.dispatch(now):
            assert isinstance(effect, AdmitTo)
            made.admitted(effect.worker, effect.request.request_id)
            made.on_ended(RequestsEnded(worker=effect.worker, request_ids=[effect.request.request_id], tokens=[24]))
        for one in reports or three():  # nothing that was given waits there any more
            hear(made, one, now)
        orders += [effect for effect in made.expire(now) if isinstance(effect, AssignRole)]
    made.check_invariants()
    return orders


def test_auto_gives_roles_by_what_came_and_what_was_measured() -> None:
    orders = played(router(*three()), 14.0)
    assert sorted({(order.worker, order.role) for order in orders}) == [
        ("a", "prefill"),
        ("b", "prefill"),
        ("c", "decode"),
    ]
    assert all(order.reason.startswith("2 of 3 prefill: ") for order in orders)


def test_a_loose_pace_another_setting_and_several_ranks_give_none() -> None:
    assert played(router(*three(), tbt=0.15), 14.0) == []
    for own in ("off", "on"):
        assert played(router(*three(), own=own), 14.0) == []
    ranked = router(*three())
    ranked.on_models([replace(entry("m"), spec=replace(entry("m").spec, tensor_parallel_size=2))])
    assert played(ranked, 14.0) == []


def test_instances_that_load_or_leave_get_no_role() -> None:
    all = (*three(), report("n", ENGINE, state="loading"), report("o", ENGINE, state="draining"))
    assert {order.worker for order in played(router(*all), 14.0, *all)} == {"a", "b", "c"}


def test_each_request_goes_the_way_that_keeps_the_pace() -> None:
    made = router(report("p", ENGINE, role="prefill"), report("d", ENGINE, role="decode"), tbt=0.0120)
    for id, tokens in (("long", 6), ("short", 1)):
        made.submit(request(id, max_tokens=tokens), NOW)
    ways = {one.request.request_id: one for one in made.dispatch(NOW) if isinstance(one, AdmitTo)}
    assert (ways["long"].worker, ways["long"].decode) == ("p", "d")
    assert (ways["short"].worker, ways["short"].decode) == ("p", None)
    assert ways["short"].reason.endswith("; local: its first token is its last")
    # The other one has so many that a token takes 25 ms there; here one decodes, at 16 ms beside prompts.
    hear(made, report("d", replace(ENGINE, running_requests=100, max_requests=200), role="decode"))
    made.submit(request("next"), NOW)
    [last] = [one for one in made.dispatch(NOW) if isinstance(one, AdmitTo)]
    assert (last.worker, last.decode) == ("p", None)
    assert last.reason.endswith("; local: 25 ms a token there, 16 ms here, 12 ms are in time")


def placed(made: RouterPolicy, id: str) -> AdmitTo:
    """Where this request goes, which is the only one that waits."""
    made.submit(request(id), NOW)
    [one] = [effect for effect in made.dispatch(NOW) if isinstance(effect, AdmitTo)]
    return one


def test_kv_that_two_instances_send_at_a_time_goes_to_different_ones() -> None:
    fuller = replace(ENGINE, kv_blocks_used=50_000)
    made = router(
        *(report(worker, ENGINE, role="prefill") for worker in "pq"),
        report("d", ENGINE, role="decode"),
        report("e", fuller, role="decode"),
        own="on",
    )
    first = placed(made, "first")
    assert (first.worker, first.decode) == ("p", "d")
    assert first.reason.endswith("d decodes: it has most free blocks of those here to which no other sends")
    second = placed(made, "second")
    assert (second.worker, second.decode) == ("q", "e"), "to d comes KV from p"
    third = placed(made, "third")
    assert (third.worker, third.decode) == ("p", "d"), "what p sends to d comes one after the other"
    made.on_moved(RequestsMoved(worker="d", previous="p", request_ids=["first", "third"]), NOW)
    fourth = placed(made, "fourth")
    assert (fourth.worker, fourth.decode) == ("q", "d"), "nothing comes to d any more"


def test_where_others_send_to_all_it_is_the_one_to_which_they_send_least() -> None:
    made = router(
        *(report(worker, ENGINE, role="prefill") for worker in "pqr"),
        *(report(worker, ENGINE, role="decode") for worker in "de"),
        own="on",
    )
    made.submit(request("long", prompt=900), NOW)
    made.submit(request("short", prompt=90), NOW)
    made.submit(request("last"), NOW)
    last = [effect for effect in made.dispatch(NOW) if isinstance(effect, AdmitTo)][-1]
    assert (last.worker, last.decode) == ("r", "e")
    assert last.reason.endswith("e decodes: others send least to it of those here")
