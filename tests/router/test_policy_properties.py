"""Whatever happens in whatever order: nothing is lost, doubled, overbooked or overtaken."""

from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from livescale.services.router.admission import RouterLimits
from livescale.services.router.effects import AdmitTo, FinishRequest, Learn, Lose, StopWork
from livescale.services.router.policy import RouterPolicy
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.requests import RequestsEnded, Running
from tests.router.examples import NOW, entry, hear, lease, load, report, request

SLOTS, BLOCKS = 2, 12
WORKERS = ("a", "b")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 40)),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("refuse"), st.sampled_from([400, 429, 503])),
        st.tuples(st.just("report"), st.sampled_from(WORKERS)),
        st.tuples(st.just("die"), st.sampled_from(WORKERS)),
        st.tuples(st.just("late"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=60,
)


def new_policy() -> RouterPolicy:
    policy = RouterPolicy(RouterLimits(look_ahead=0), 1000)
    policy.on_models([entry("m")])
    return policy


class World:
    """A model of everything around the policy, in which each request is in exactly one place."""

    def __init__(self) -> None:
        self.policy = new_policy()
        self.heard: set[str] = set()  # workers that this router knows
        self.now = NOW
        self.epochs = dict.fromkeys(WORKERS, 1)
        self.at: dict[str, str] = {}  # request -> worker, "queue" or "over"
        self.prompts: dict[str, int] = {}
        self.cancelled: set[str] = set()
        self.refuse: int | None = None

    def number(self) -> int:
        return len(self.at)

    def live(self, worker: str) -> list[str]:
        return [id for id, place in self.at.items() if place == worker]

    def submit(self, prompt: int) -> None:
        id = f"r-{self.number()}"
        self.prompts[id] = prompt
        self.send(id)

    def send(self, id: str) -> None:
        self.at[id] = "over"
        with suppress(Refusal):  # too large for any worker, or none was there for too long
            self.policy.submit(request(id, prompt=self.prompts[id], deadline=self.now + 30), self.now)
            self.at[id] = "queue"

    def blocks(self, id: str) -> int:
        return -(-self.prompts[id] // 4)

    def restart(self, _: int) -> None:
        """Another router, that knows nothing; gateways submit again what waits."""
        self.policy, self.heard = new_policy(), set()
        self.cancelled.clear()
        for id, place in sorted(self.at.items()):
            if place == "queue":
                self.send(id)

    def end(self, index: int) -> None:
        running = [id for id, place in sorted(self.at.items()) if place in WORKERS]
        if running:
            id = running[index % len(running)]
            self.policy.on_ended(RequestsEnded(worker=self.at[id], request_ids=[id]))
            self.at[id] = "over"

    def cancel(self, index: int) -> None:
        id = f"r-{index}"
        effects = self.policy.cancel(id)
        place = self.at.get(id)
        if place == "queue":
            assert effects == []
            self.at[id] = "over"
        elif place in self.heard:
            assert effects == [StopWork(str(place), id, "cancelled")]
            self.cancelled.add(id)

    def report(self, worker: str) -> None:
        running = len(self.live(worker))
        engine = load(running=running, slots=SLOTS, blocks=BLOCKS)
        effects = self.policy.on_report(report(worker, engine, epoch=self.epochs[worker]), self.now)
        assert [effect for effect in effects if isinstance(effect, Learn)] == effects
        assert len(effects) == (worker not in self.heard)
        if effects:
            runs = [Running(request_id=id, gateway="gateway-0", tokens=self.prompts[id]) for id in self.live(worker)]
            self.policy.learned(worker, runs, self.now)
        self.heard.add(worker)

    def die(self, worker: str) -> None:
        lost = self.live(worker)
        effects = self.policy.on_lease(lease(worker, "dead", self.epochs[worker]))
        known = set(lost) if worker in self.heard else set()
        told = [effect.request_id for effect in effects if isinstance(effect, Lose)]
        assert sorted(told) == sorted(known - self.cancelled)
        self.heard.discard(worker)
        self.epochs[worker] += 1
        for id in lost:
            self.at[id] = "over"

    def late(self, _: int) -> None:
        self.now += 31
        self.perform(self.policy.expire(self.now))
        assert "queue" not in self.at.values()

    def perform(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case AdmitTo(worker=worker, request=one):
                    assert self.at[one.request_id] == "queue"
                    self.answer(effect, worker, one.request_id)
                case FinishRequest(request_id=id):
                    assert self.at[id] == "queue"
                    self.at[id] = "over"
                case Lose():
                    raise AssertionError(f"nothing is lost here: {effect}")

    def answer(self, effect: AdmitTo, worker: str, id: str) -> None:
        code, self.refuse = self.refuse, None
        if code is not None:
            for final in self.policy.refused(effect, code, "no"):
                assert isinstance(final, FinishRequest)
                self.at[id] = "over"
            return
        self.at[id] = worker
        assert self.policy.admitted(worker, id) == []
        assert len(self.live(worker)) <= SLOTS
        assert sum(self.blocks(one) for one in self.live(worker)) <= BLOCKS

    def step(self, what: str, value: Any) -> None:
        if what == "refuse":
            self.refuse = value
        else:
            getattr(self, what)(value)
        self.perform(self.policy.dispatch(self.now))
        self.policy.check_invariants()
        [queue] = self.policy.loads(self.now)
        assert queue.waiting_requests == sum(place == "queue" for place in self.at.values())
        assert queue.running == sum(place in self.heard for place in self.at.values())


@settings(max_examples=150)
@given(steps)
def test_each_request_is_in_one_place_and_no_instance_is_overbooked(steps: list[tuple[str, Any]]) -> None:
    world = World()
    for what, value in steps:
        world.step(what, value)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans()), min_size=1, max_size=30))
def test_within_a_priority_nobody_is_overtaken(asked: list[tuple[int, bool]]) -> None:
    policy = RouterPolicy(RouterLimits(), 1000)
    policy.on_models([entry("m")])
    for number, (priority, resumed) in enumerate(asked):
        generated = [1] if resumed else []
        policy.submit(request(f"{number}", priority=priority, generated=generated), NOW)
    hear(policy, report("a", load(slots=100, blocks=1000)), NOW)
    order = [int(effect.request.request_id) for effect in policy.dispatch(NOW) if isinstance(effect, AdmitTo)]
    assert order == sorted(range(len(asked)), key=lambda number: (asked[number][0], not asked[number][1], number))
