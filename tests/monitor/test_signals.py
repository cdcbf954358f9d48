"""The view of a model, from the last reports of all processes."""

from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from livescale.services.monitor.signals import Signals
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.scaling import ScaleRecord
from tests.monitor.reports import SIZE, Watched, dead, load, queues, record, serving, spare, spec
from tests.spans import CALLER


def test_an_instance_where_a_request_waits_for_kv_blocks_has_none_left() -> None:
    signals = Signals(stale_seconds=2.0)
    signals.on_router(queues(), 0.0)
    signals.on_worker(serving("a", load(kv_blocks_used=70, kv_full=True)), 0.0)
    signals.on_worker(serving("b", load(kv_blocks_used=20)), 0.0)
    entry = ModelEntry(spec=spec(), state="ready", size_bytes=SIZE)
    assert signals.observe(entry, 0.0).kv_blocks_used == 100 + 20


def test_an_instance_that_is_live_loads_and_is_there_already_with_all_its_load() -> None:
    signals = Signals(stale_seconds=2.0)
    signals.on_router(queues(), 0.0)
    signals.on_scale(record("loading", ["a"]))
    signals.on_worker(serving("a", load(waiting_requests=3, waiting_tokens=300, kv_blocks_used=20), state="live"), 0.0)
    signals.on_worker(serving("b", load(running_requests=2, kv_blocks_used=5), helping=["a"]), 0.0)
    found = signals.observe(ModelEntry(spec=spec(), state="ready", size_bytes=SIZE), 0.0)
    assert (found.instances, found.loading, found.coming, found.current) == (2, 1, 0, 2)
    assert (found.waiting_tokens, found.waiting_requests, found.running_requests) == (300, 3, 2)
    assert found.kv_blocks_used == 20 + 5


def test_spares_are_counted_in_instances_that_can_be_made_of_them() -> None:
    signals = Signals(stale_seconds=2.0)
    signals.on_router(queues(), 0.0)
    for worker in "abcde":
        signals.on_worker(spare(worker, arena_bytes=SIZE // 2), 0.0)
    entry = ModelEntry(spec=spec(tensor_parallel_size=2), state="ready", size_bytes=SIZE)
    assert signals.observe(entry, 0.0).spare == 2


def test_spare_workers_that_keep_the_parameters_of_this_version_count_until_a_plan_takes_them() -> None:
    watched = Watched()
    [entry] = watched.signals.models()
    watched.hear(
        0.0, queues(0), *(replace(spare(id), parked="v") for id in ("a", "b")), replace(spare("c"), parked="w")
    )
    assert watched.signals.observe(entry, 0.0).parked == 2
    watched.signals.on_scale(record("loading", ["a"]))
    assert watched.signals.observe(entry, 0.0).parked == 1
    assert watched.signals.observe(entry, 2.5).parked == 0  # they were not heard for too long
    watched.hear(3.0, spare("b"))  # another model had the memory meanwhile
    assert watched.signals.observe(entry, 3.0).parked == 0
    assert watched.signals.observe(replace(entry, version=None), 0.0).parked == 0


def test_only_what_drains_for_want_of_load_and_of_this_version_can_serve_again() -> None:
    watched = Watched()
    [entry] = watched.signals.models()
    watched.hear(0.0, queues(0), serving("w-1", version="v"), serving("w-2", version="v", state="draining"))
    watched.hear(0.0, serving("w-3", version="old", state="draining"))

    def drained(rule: str) -> ScaleRecord:
        scale = record("draining", ["w-2", "w-3"], "in")
        return replace(scale, decision=replace(scale.decision, rule=rule))

    for rule, recallable in (("idle", 1), ("operator", 0), ("yield", 0), ("version", 0)):
        watched.signals.on_scale(drained(rule))
        seen = watched.signals.observe(entry, 0.0)
        assert (seen.current, seen.recallable, seen.to_be_had) == (1, recallable, recallable), rule
    watched.signals.on_scale(replace(drained("idle"), state="done"))
    assert watched.signals.observe(entry, 0.0).recallable == 0


def test_requests_of_an_instance_that_drains_count_where_others_go_on_with_them() -> None:
    def running(*states: str, version: str = "v", ranks: int = 1) -> tuple[int, int]:
        watched = Watched(spec(tensor_parallel_size=ranks))
        watched.signals.on_models([replace(watched.signals.models()[0], version="v")])
        [entry] = watched.signals.models()
        watched.hear(0.0, queues(0))
        for number, state in enumerate(states):
            told = version if state == "draining" else "v"
            busy = load(running_requests=number + 1, kv_blocks_used=10)
            watched.hear(0.0, serving(f"w-{number}", busy, state=state, version=told))
        found = watched.signals.observe(entry, 0.0)
        return found.running_requests, found.kv_blocks_used

    assert running("serving", "draining") == (3, 20)
    assert running("serving", "draining", version="old") == (1, 10)
    assert running("serving", "draining", ranks=2) == (1, 10)
    assert running("draining") == (0, 0)


def test_instances_of_several_workers_are_never_taken_back() -> None:
    watched = Watched(spec(tensor_parallel_size=2))
    [entry] = watched.signals.models()
    watched.hear(0.0, queues(0), serving("w-2", version="v", state="draining"))
    scale = record("draining", ["w-2"], "in")
    watched.signals.on_scale(replace(scale, decision=replace(scale.decision, rule="idle")))
    assert watched.signals.observe(entry, 0.0).recallable == 0


def test_who_has_waited_longest_is_known_by_its_trace() -> None:
    signals = Signals(stale_seconds=2.0)
    assert signals.traceparent("m") is None
    report = queues(10)
    signals.on_router(replace(report, queues=[replace(report.queues[0], traceparent=CALLER)]), 0.0)
    assert (signals.traceparent("m"), signals.traceparent("n")) == (CALLER, None)


def test_what_is_known_already_is_what_comes_of_looking_anew() -> None:
    chance, entry = Random(5), ModelEntry(spec=spec(), state="ready", size_bytes=SIZE)
    known, anew = Signals(stale_seconds=2.0), Signals(stale_seconds=2.0)
    kept = 0

    def draw(step: int, now: float) -> Callable[[Signals], None]:
        what, worker, size = chance.randrange(8), f"w-{chance.randrange(4)}", chance.randrange(3)
        if what < 3:
            report = serving(
                worker, load(running_requests=size), state=chance.choice(("loading", "serving", "draining"))
            )
            return lambda signals: signals.on_worker(report, now)
        if what == 3:
            return lambda signals: signals.on_worker(spare(worker, SIZE * size), now)
        if what == 4:
            return lambda signals: signals.on_router(queues(100 * size), now)
        if what == 5:
            scale = record(chance.choice(("loading", "draining", "done")), [f"i-{worker}"])
            return lambda signals: signals.on_scale(scale)
        if what == 6 and step > 1900:
            return lambda signals: signals.on_lease(dead(worker))
        return lambda signals: None

    before = None
    for step in range(2000):
        now = step * 0.25
        event = draw(step, now)
        event(known)
        event(anew)
        seen = known.observe(entry, now)
        assert seen == anew.observe(replace(entry), now)
        kept += seen is before
        before = seen
    assert 100 < kept < 1900
