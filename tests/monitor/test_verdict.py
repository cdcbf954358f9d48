"""What follows from a verdict for the workers of other models."""

from typing import Any

import pytest
from msgspec.structs import replace

from livescale.services.monitor.arbitration import Given
from livescale.services.monitor.needs import Need, Unknown
from livescale.services.monitor.verdict import JudgedModel, ScalingVerdict, find_lack, give
from livescale.shared.messages.registry import ModelEntry
from tests.monitor.reports import SIZE, observed, spec


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


def test_who_gives_loses_one_instance_and_says_to_whom_and_why() -> None:
    verdict = give(judged(current=3), Given("other", "it has more than its need"))
    assert (verdict.model, verdict.action, verdict.target, verdict.rule) == ("m", "in", 2, "yield")
    assert "other needs an instance" in verdict.reason
    assert "it has more than its need: no spare worker fits" in verdict.reason
