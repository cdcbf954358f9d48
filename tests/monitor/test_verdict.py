"""What follows from a verdict for the workers of other models, and what an advisory monitor carries out all the
same."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from livescale.services.monitor.arbitration import Given
from livescale.services.monitor.needs import Need, Unknown
from livescale.services.monitor.verdict import (
    Journal,
    JudgedModel,
    ScalingVerdict,
    as_advice,
    find_donor,
    find_lack,
    give,
    make_room,
)
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.scaling import Action, Decision
from tests.monitor.reports import SIZE, decision, observed, spec


def judged(rule: str = "capacity", current: int = 1, need: Need | Unknown | None = None, **more: Any) -> JudgedModel:
    verdict = ScalingVerdict("m", "hold", current, 3, rule, "no spare worker fits", {})
    entry = ModelEntry(spec=replace(spec(), **more), state="ready", version="v", size_bytes=SIZE)
    return JudgedModel(entry, observed(instances=current), need or Need("prefill", 2, 4, "much waits"), verdict)


def test_a_model_that_capacity_alone_holds_up_lacks_workers_for_all_ranks() -> None:
    lack = find_lack(judged(tensor_parallel_size=2, priority=3))
    assert lack is not None
    assert (lack.model, lack.least, lack.wanted, lack.priority, lack.has_none) == ("m", 2, 4, 3, False)
    one = find_lack(judged())
    assert one is not None
    assert (one.least, one.wanted) == (1, 2)


def test_a_model_without_any_instance_says_so() -> None:
    lack = find_lack(judged(current=0))
    assert lack is not None
    assert lack.has_none


@pytest.mark.parametrize(
    "one",
    [
        judged(rule="cooldown"),
        judged(current=2),
        judged(need=Unknown("nothing was measured")),
        judged(current=5, need=Need("version", 3, 4, "an older version")),
    ],
)
def test_what_else_holds_a_model_up_is_no_reason_to_take_from_others(one: JudgedModel) -> None:
    assert find_lack(one) is None


def test_an_idle_model_above_its_minimum_makes_room_for_one_that_lacks_workers() -> None:
    idle, short = judged("idle", current=3, need=Need("prefill", 1, 2, "little waits")), judged(current=0)
    donor = find_donor(idle, idle_seconds=2.0, surplus_seconds=None, arena_bytes=SIZE)
    lack = find_lack(short)
    assert donor is not None
    assert lack is not None
    (verdict,) = make_room([idle], [dataclasses.replace(lack, model="other")], [donor], freeing=0)
    assert (verdict.action, verdict.target, verdict.rule) == ("in", 2, "yield")
    at_minimum = judged("idle", current=1, min_instances=1)
    assert find_donor(at_minimum, idle_seconds=2.0, surplus_seconds=None, arena_bytes=SIZE) is None


def test_who_gives_loses_one_instance_and_says_to_whom_and_why() -> None:
    verdict = give(judged(current=3), Given("other", "it has more than its need"))
    assert (verdict.model, verdict.action, verdict.target, verdict.rule) == ("m", "in", 2, "yield")
    assert "other needs an instance" in verdict.reason
    assert "it has more than its need: no spare worker fits" in verdict.reason


SPEC = ModelSpec(name="m", path="/m", min_instances=2, max_instances=8)


def verdict(action: Action, current: int, target: int, rule: str = "prefill") -> ScalingVerdict:
    return ScalingVerdict("m", action, current, target, rule, "why", {})


@pytest.mark.parametrize(
    ("given", "target", "rule", "is_advice"),
    [
        (verdict("out", 2, 5), 5, "prefill", True),
        (verdict("in", 3, 2, "idle"), 2, "idle", True),
        (verdict("switch", 3, 3), 3, "prefill", True),
        (verdict("out", 0, 5), 2, "minimum", False),
        (verdict("out", 0, 1), 1, "minimum", False),  # there is room for one
        (verdict("in", 3, 0, "removed"), 0, "removed", False),
        (verdict("hold", 1, 1), 1, "prefill", False),
    ],
)
def test_a_model_gets_its_fewest_instances_and_is_cleared_and_the_rest_is_advice(
    given: ScalingVerdict, target: int, rule: str, is_advice: bool
) -> None:
    made = as_advice(given, SPEC)
    assert (made.action, made.target, made.rule, made.is_advice) == (given.action, target, rule, is_advice)


def test_advice_is_news_when_it_changes() -> None:
    journal = Journal()

    def news(one: ScalingVerdict) -> bool:
        if not journal.is_news(one):
            return False
        told = {"action": one.action, "current": one.current, "target": one.target, "rule": one.rule}
        journal.add(Decision(id="d", model="m", at=0.0, reason="", by="monitor", advice=one.is_advice, **told))  # type: ignore[arg-type]
        return True

    verdicts = [("out", 2, 5), ("out", 2, 5), ("out", 2, 6), ("hold", 2, 2), ("out", 2, 6)]
    assert [news(as_advice(verdict(*one), SPEC)) for one in verdicts] == [True, False, True, True, True]  # type: ignore[arg-type]


def test_the_journal_keeps_scales_and_what_makes_it_hold() -> None:
    journal = Journal()

    def news(number: int, action: Action, rule: str) -> bool:
        if not journal.is_news(ScalingVerdict("m", action, 1, 1, rule, "why", {})):
            return False
        made = Decision(
            id=f"d-{number}", model="m", at=0.0, action=action, current=1, target=1, rule=rule, reason="", by="monitor"
        )
        journal.add(made)
        return True

    verdicts: list[tuple[Action, str]] = [
        *(("hold", "within"), ("hold", "within"), ("hold", "idle"), ("in", "idle"), ("in", "idle"))
    ]
    told = [news(number, action, rule) for number, (action, rule) in enumerate(verdicts)]
    assert told == [True, False, True, True, True]
    assert [one.id for one in journal.last("m", 2)] == ["d-3", "d-4"]
    assert journal.last("other", 2) == []
    assert journal.last(None, 0) == []


def test_holds_push_no_scale_out_of_the_journal() -> None:
    journal = Journal()
    journal.add(decision(2))
    for _ in range(5_000):
        journal.add(decision(2, "hold"))
    kept = journal.last("m", 10_000)
    assert (len(kept), kept[0].action, kept[-1].action) == (1_001, "out", "hold")
