"""What an advisory monitor carries out all the same, and what it says only once."""

import pytest

from livescale.services.monitor.advice import as_advice
from livescale.services.monitor.journal import Journal
from livescale.services.monitor.verdict import ScalingVerdict
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.scaling import Action, Decision

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
