"""Models that wait take idle instances of others."""

from msgspec.structs import replace

from livescale.services.monitor.donors import IDLE_SECONDS, Donor, Lack, choose_donors
from livescale.services.monitor.policy import Pace, ScalingPolicy
from livescale.services.monitor.signals import Signals
from livescale.shared.messages.membership import EngineLoad, QueueLoad, RouterReport, WorkerReport
from livescale.shared.messages.parameters import ModelSpec
from livescale.shared.messages.registry import ModelEntry
from tests.monitor.made import COMMON, SIZE, decision, load, record, serving, spare

DONOR = Donor("idle", idle_seconds=9.0, workers=1, arena_bytes=SIZE)
LACK = Lack("waits", workers=1, rank_bytes=SIZE)


class Two:
    """A model `waits` that has requests and nothing that serves, and a model `idle` with instances."""

    def __init__(self, *instances: WorkerReport, min_instances: int = 0, size: int = SIZE) -> None:
        self.signals = Signals(stale_seconds=2.0)
        self.policy = ScalingPolicy(self.signals, Pace(asked_seconds=5.0, retry_seconds=1.0))
        self.instances = instances
        common = {**COMMON, "downscale_delay_s": 60.0, "downscale_to_zero_delay_s": 60.0}
        idle = ModelSpec(name="idle", path="/m", min_instances=min_instances, **common)  # type: ignore[arg-type]
        waits = ModelSpec(name="waits", path="/m", min_instances=0, **common)  # type: ignore[arg-type]
        entries = [ModelEntry(spec=each, state="ready", version="v", size_bytes=size) for each in (idle, waits)]
        self.signals.on_models(entries)

    def judge(self, now: float, waiting: int = 1) -> dict[str, tuple[str, int, str]]:
        for report in self.instances:
            self.signals.on_worker(report, now)
        queue = QueueLoad(model="waits", waiting_requests=waiting, waiting_tokens=0, oldest_seconds=0.0, running=0)
        self.signals.on_router(RouterReport(id="router-0", epoch=1, queues=[queue]), now)
        return {each.model: (each.action, each.target, each.rule) for each in self.policy.decide(now)}


def has(worker: str, engine: EngineLoad | None = None, **more: object) -> WorkerReport:
    return serving(worker, engine, **{"model": "idle", **more})


def test_a_model_that_waits_gets_an_idle_instance_of_another_at_once() -> None:
    two = Two(has("w-1"))
    assert two.judge(0.0, waiting=0)["idle"] == ("hold", 1, "idle")
    assert two.judge(5.0) == {"idle": ("in", 0, "yield"), "waits": ("hold", 0, "capacity")}


def test_it_is_asked_for_once() -> None:
    two = Two(has("w-1"), has("w-2"))
    two.judge(0.0, waiting=0)
    assert two.judge(5.0)["idle"] == ("in", 1, "yield")
    two.policy.asked(replace(decision(1, "in"), model="idle"), 5.0)
    assert two.judge(5.1)["idle"] == ("hold", 2, "asked")
    draining = replace(record("draining", ["w-1"], "in"), decision=replace(decision(1, "in"), model="idle"))
    two.signals.on_scale(draining)
    two.policy.planned(replace(decision(1, "in"), model="idle"))
    assert two.judge(9.0)["idle"][0] == "hold"


def test_a_gap_between_two_requests_is_no_idleness() -> None:
    two = Two(has("w-1"))
    two.judge(0.0, waiting=0)
    assert two.judge(IDLE_SECONDS / 2)["idle"] == ("hold", 1, "idle")


def test_what_serves_is_kept() -> None:
    two = Two(has("w-1", load(running_requests=8)))
    two.judge(0.0, waiting=0)
    assert two.judge(5.0)["idle"] == ("hold", 1, "within")


def test_the_minimum_is_kept() -> None:
    two = Two(has("w-1"), min_instances=1)
    two.judge(0.0, waiting=0)
    assert two.judge(5.0)["idle"] == ("hold", 1, "within")


def test_a_spare_worker_is_taken_first() -> None:
    two = Two(has("w-1"), spare("w-2"))
    two.judge(0.0, waiting=0)
    assert two.judge(5.0) == {"idle": ("hold", 1, "idle"), "waits": ("out", 1, "from-zero")}


def test_an_instance_whose_worker_has_no_room_is_left_alone() -> None:
    two = Two(has("w-1", arena_bytes=SIZE - 1))
    two.judge(0.0, waiting=0)
    assert two.judge(5.0)["idle"] == ("hold", 1, "idle")


def test_who_was_idle_longest_gives_first_and_no_more_than_is_lacked() -> None:
    later = Donor("later", idle_seconds=2.0, workers=1, arena_bytes=SIZE)
    assert choose_donors([LACK], [later, DONOR], freeing=0) == {"idle": "waits"}
    assert choose_donors([LACK], [later, DONOR], freeing=1) == {}
    large = Lack("large", workers=2, rank_bytes=SIZE)
    assert choose_donors([large], [later, DONOR], freeing=0) == {"idle": "large", "later": "large"}
