"""Which split a model gets: by forecasts, with hysteresis, and by orders that are repeated until they are obeyed."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from livescale.services.router.effects import AssignRole
from livescale.services.router.forecast import EngineSpeed, Slos
from livescale.services.router.instances import InstanceView
from livescale.services.router.modes import (
    DWELL_SECONDS,
    EVALUATE_SECONDS,
    LEAST_OUTPUTS,
    LEAST_REQUESTS,
    MOST_REQUESTS,
    ORDER_SECONDS,
    ModelMode,
    RecentRequests,
    assign,
    best_split,
    is_due,
    speed_of,
    splits,
)
from livescale.shared.messages.membership import Role, StepSpeed
from tests.router.examples import NOW, load, report, request

STEPS = StepSpeed(
    step_seconds=0.0115,
    row_seconds=0.000129,
    prompt_tokens_per_second=14_500.0,
    beside_tokens=150.0,
    beside_seconds=0.004,
)
TIGHT, LOOSE = Slos(1.0, 0.0125), Slos(1.0, 0.15)


def serving(worker: str, role: Role = "colocated", used: int = 0, measured: bool = True) -> InstanceView:
    view = InstanceView(worker)
    engine = replace(load(used=used, slots=99, blocks=100_000), steps=STEPS if measured else None)
    view.update(report(worker, engine, role=role), NOW)
    return view


class Model:
    """A model whose instances obey, unless they are `deaf`; its requests come at a steady pace."""

    def __init__(self, *instances: InstanceView) -> None:
        self.mode = ModelMode()
        self.instances = {one.worker: one for one in instances}
        self.now = NOW
        self.orders: list[tuple[float, AssignRole]] = []
        self.deaf = False
        self._came = 0

    def play(self, seconds: float, slos: Slos, rate: float = 20.0, output: int = 24) -> "Model":
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            while self._came < (self.now - NOW) * rate:
                self._came += 1
                self.mode.recent.came(request(f"r{self._came}", prompt=900), self.now)
                self.mode.recent.ended(output)
            for order in self.mode.tick(list(self.instances.values()), slos, self.now):
                self.orders.append((self.now - NOW, order))
                if not self.deaf:
                    self.instances[order.worker] = serving(order.worker, order.role)
        return self

    @property
    def roles(self) -> list[str | None]:
        return sorted((one.role for one in self.instances.values()), key=str)


def three() -> Model:
    return Model(serving("a"), serving("b"), serving("c"))


def test_a_tight_pace_splits_and_a_loose_one_brings_nothing() -> None:
    assert three().play(30.0, TIGHT).roles == ["decode", "prefill", "prefill"]
    assert three().play(30.0, LOOSE).orders == []


@pytest.mark.parametrize(
    ("shares", "current", "best"),
    [
        ([0.54, 0.01, 0.08, 0.65, 0.99, 1.0], 0, 4),  # the last is as good, and beside it is nothing
        ([0.54, 0.01, 0.08, 0.65, 0.90, 1.0], 0, 5),
        ([0.54, 0.01, 0.08, 0.65, 0.98, 1.0], 4, 4),
        ([0.97, 0.01, 0.08, 0.65, 0.98, 1.0], 0, 5),  # that one alone gains enough
        ([0.98, 0.01, 0.08, 0.65, 0.98, 1.0], 0, 0),
    ],
)
def test_of_splits_that_are_about_as_good_the_one_least_close_to_bad_ones_is_best(
    shares: list[float], current: int, best: int
) -> None:
    assert best_split(dict(enumerate(shares)), current) == best


def test_under_a_steady_load_nothing_changes_again() -> None:
    model = three().play(200.0, TIGHT)
    assert len(model.orders) == 3
    assert model.mode.reason.startswith("2 of 3 prefill: ")


def test_what_is_not_measured_decides_nothing() -> None:
    unmeasured = Model(*(serving(worker, measured=False) for worker in "abc"))
    assert unmeasured.play(30.0, TIGHT).orders == []
    assert unmeasured.mode.forecasts == {}
    assert three().play(30.0, TIGHT, rate=0.1).orders == []


def test_a_split_lasts_the_longer_the_less_there_is_to_gain() -> None:
    assert is_due(0.031, DWELL_SECONDS)
    assert not is_due(0.031, DWELL_SECONDS - EVALUATE_SECONDS)
    assert is_due(0.3, 2.0)
    assert not is_due(0.3, 1.0)
    model = three().play(13.0, TIGHT)
    assert model.roles == ["decode", "prefill", "prefill"]
    model.play(60.0, Slos(1.0, 0.0118), rate=2.0, output=200)
    assert len({order.reason for _, order in model.orders}) <= 2


def test_what_the_first_seconds_did_not_show_counts_soon_after_them() -> None:
    model = three().play(6.0, LOOSE)
    assert (model.orders, max(model.mode.forecasts)) == ([], 2)
    assert model.play(2.0, TIGHT).roles == ["decode", "prefill", "prefill"]


def test_an_order_is_repeated_until_the_worker_has_the_role() -> None:
    model = three()
    model.deaf = True
    model.play(20.0, TIGHT)
    times = [at for at, order in model.orders if order.worker == "a"]
    assert len(times) >= 5
    assert all(after - before >= ORDER_SECONDS - 1e-6 for before, after in pairwise(times))
    model.deaf = False
    assert model.play(2.0, TIGHT).roles == ["decode", "prefill", "prefill"]


@pytest.mark.parametrize("lost", ["a", "b", "c"])
def test_a_death_leaves_one_that_prefills_and_one_that_decodes(lost: str) -> None:
    model = three().play(30.0, TIGHT)
    del model.instances[lost]
    assert model.play(1.5, TIGHT).roles == ["decode", "prefill"]
    del model.instances[next(iter(model.instances))]
    assert model.play(1.5, TIGHT).roles == ["colocated"]


def test_a_new_router_goes_on_with_the_roles_that_it_finds() -> None:
    model = Model(serving("a", "prefill"), serving("b", "decode"), serving("c", "decode"))
    assert model.play(1.0, LOOSE).orders == []
    assert model.mode.wanted == 1


def test_instances_that_are_new_take_the_role_that_is_lacking() -> None:
    views = [serving("a", "prefill"), serving("b", "decode", used=50_000), serving("n"), serving("o", used=9_000)]
    assert assign(views, 1) == {"a": "prefill", "b": "decode", "n": "decode", "o": "decode"}
    assert assign(views, 2) == {"a": "prefill", "b": "decode", "n": "prefill", "o": "decode"}
    assert set(assign(views, 0).values()) == {"colocated"}


@given(some.integers(1, 300), some.integers(0, 300))
def test_splits_to_weigh_are_few_and_leave_one_that_decodes(count: int, current: int) -> None:
    found = splits(count, min(current, count - 1))
    assert len(found) <= 19
    assert found == sorted(set(found))
    assert found[0] == 0
    assert found[-1] == count - 1
    assert min(current, count - 1) in found


@given(some.lists(some.sampled_from(["colocated", "prefill", "decode"]), min_size=1, max_size=8), some.data())
def test_as_many_prefill_as_are_wanted_and_fewest_change(roles: Iterable[Role], data: some.DataObject) -> None:
    views = [serving(f"w{number}", role) for number, role in enumerate(roles)]
    wanted = data.draw(some.integers(0, len(views) - 1))
    given_roles = assign(views, wanted)
    assert sum(role == "prefill" for role in given_roles.values()) == wanted
    kept = sum(one.role == "prefill" == given_roles[one.worker] for one in views)
    assert kept == min(wanted, sum(one.role == "prefill" for one in views))


MEASURED = StepSpeed(
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
    views = [instance(replace(MEASURED, step_seconds=step)) for step in (0.01, 0.02, 0.9)]
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
