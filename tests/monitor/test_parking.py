"""Instances whose workers keep the parameters are given back as soon as they are idle, and come back as they are
needed."""

from msgspec.structs import replace

from livescale.shared.messages.membership import WorkerReport
from tests.monitor.reports import load, queues, spare, spec
from tests.monitor.test_role_policy import WatchedRoles, decoding, prefilling

IDLE, PREFILLS = load(), load(waiting_requests=1, waiting_tokens=200)


def parked(worker: str) -> WorkerReport:
    return replace(spare(worker), parked="v")


def pool(*workers: WorkerReport) -> WatchedRoles:
    watched = WatchedRoles(spec(downscale_delay_s=5.0))
    watched.hear(0.0, *workers, queues(0))
    return watched


BUSY_PAIR = (prefilling("p", PREFILLS), decoding("d", load(running_requests=1)))


def test_an_idle_instance_is_given_back_at_once_where_its_worker_keeps_the_parameters() -> None:
    assert pool(*BUSY_PAIR, prefilling("q", IDLE), parked("s")).judge_roles(0.0) == (
        "in",
        2,
        {"prefill": 1, "decode": 1},
    )
    assert pool(*BUSY_PAIR, decoding("e", IDLE), parked("s")).judge_roles(0.0) == ("in", 2, {"prefill": 1, "decode": 1})
    for other in (spare("s"), replace(spare("s"), parked="old")):
        assert pool(*BUSY_PAIR, prefilling("q", IDLE), other).judge_roles(0.0) == ("hold", 3, {}), "it would be loaded"


def test_an_instance_that_has_requests_keeps_its_delay() -> None:
    for busy in (PREFILLS, load(running_requests=1), load(reserved_requests=1)):
        assert pool(*BUSY_PAIR, prefilling("q", busy), parked("s")).judge_roles(0.0) == ("hold", 3, {})
    sending = replace(prefilling("q", IDLE), sending_kv=1)
    assert pool(*BUSY_PAIR, sending, parked("s")).judge_roles(0.0) == ("hold", 3, {})


def test_an_idle_instance_that_is_needed_now_or_the_last_of_its_role_stays() -> None:
    idle = pool(*BUSY_PAIR, prefilling("q", IDLE), parked("s"))
    idle.hear(0.0, queues(700))  # 900 tokens at 1,000 tokens/s: two, for half a second
    assert idle.judge_roles(0.0) == ("hold", 3, {})
    assert pool(prefilling("p", PREFILLS), decoding("d", IDLE), parked("s")).judge_roles(0.0)[0] == "hold"


def test_once_all_that_were_parked_serve_idle_ones_are_given_back_at_once_all_the_same() -> None:
    watched = pool(*BUSY_PAIR, parked("q"))
    assert watched.judge_roles(0.0)[0] == "hold"
    watched.hear(0.1, prefilling("q", IDLE))
    assert watched.judge_roles(0.1) == ("in", 2, {"prefill": 1, "decode": 1})


def test_while_more_come_at_once_a_role_gets_what_it_needs_now_not_what_it_needed_of_late() -> None:
    for make, more in ((parked, {"prefill": 2, "decode": 1}), (spare, {"prefill": 5, "decode": 1})):
        watched = pool(prefilling("p"), decoding("d", load(running_requests=1)), *(make(f"s{n}") for n in range(6)))
        watched.hear(0.0, queues(2400))
        assert watched.judge_roles(0.0)[2] == {"prefill": 5, "decode": 1}
        watched.hear(1.0, queues(800))
        assert watched.judge_roles(1.0)[2] == more
