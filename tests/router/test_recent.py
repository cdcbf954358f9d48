"""What is kept of the last requests, and how fast instances are by what they say of themselves."""

from msgspec.structs import replace

from livescale.services.router.forecast import EngineSpeed
from livescale.services.router.instances import InstanceView
from livescale.services.router.recent import LEAST_OUTPUTS, LEAST_REQUESTS, MOST_REQUESTS, RecentRequests, speed_of
from livescale.shared.messages.membership import StepSpeed
from tests.router.examples import NOW, load, report, request

STEPS = StepSpeed(
    step_seconds=0.01,
    row_seconds=0.001,
    prompt_tokens_per_second=10_000.0,
    beside_tokens=100.0,
    beside_seconds=0.005,
)


def told(count: int, outputs: int) -> RecentRequests:
    recent = RecentRequests()
    for number in range(count):
        recent.came(request(f"r{number}", prompt=number + 1), NOW + number / 4)
    for number in range(outputs):
        recent.ended(number + 1)
    return recent


def test_too_few_requests_say_nothing() -> None:
    assert told(LEAST_REQUESTS - 1, LEAST_OUTPUTS).requests(NOW) == []
    assert told(LEAST_REQUESTS, LEAST_OUTPUTS - 1).requests(NOW) == []
    assert len(told(LEAST_REQUESTS, LEAST_OUTPUTS).requests(NOW)) == LEAST_REQUESTS


def test_the_last_requests_are_kept_with_outputs_of_those_that_ended() -> None:
    kept = told(MOST_REQUESTS + 10, 40).requests(NOW)
    assert [one.prompt for one in kept] == list(range(11, MOST_REQUESTS + 11))
    assert [one.output for one in kept[:41]] == [*range(1, 41), 1]
    assert kept[0].at == NOW + 10 / 4
    assert told(MOST_REQUESTS + 1, 0).has_forgotten
    assert not told(MOST_REQUESTS, 0).has_forgotten


def test_old_requests_are_forgotten() -> None:
    recent = told(100, 40)
    assert not recent.has_forgotten
    assert len(recent.requests(NOW + 60.0 + 30 / 4)) == 100 - 31
    assert recent.has_forgotten
    assert recent.requests(NOW + 90.0) == []


def test_a_short_while_says_nothing_of_queues() -> None:
    recent = told(0, 40)
    for number in range(100):
        recent.came(request(f"r{number}"), NOW + number / 24)
    assert recent.requests(NOW + 4.5) == []
    recent.came(request("last"), NOW + 5.1)
    assert len(recent.requests(NOW + 5.1)) == 101


def test_the_speed_is_the_median_of_those_that_know_it() -> None:
    def instance(steps: StepSpeed | None) -> InstanceView:
        view = InstanceView("w")
        view.update(report("w", replace(load(), steps=steps)), NOW)
        return view

    assert speed_of([instance(None)]) is None
    views = [instance(replace(STEPS, step_seconds=step)) for step in (0.01, 0.02, 0.9)]
    found = speed_of([instance(None), *views])
    assert found == EngineSpeed(
        prefill=10_000.0,
        step=0.02,
        row=0.001,
        beside_tokens=100.0,
        beside_seconds=0.005,
        slots=2,
        kv_tokens=400,
    )
