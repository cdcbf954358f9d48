"""What clients and operators are told about models and instances."""

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from livescale.services.gateway.answers import instances, status, warning, why_unavailable
from livescale.shared.messages.membership import Holding, Member, WorkerReport, WorkerState
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry, Snapshot
from livescale.shared.model.latency import MADE_UP

ENTRY = ModelEntry(spec=ModelSpec(name="m", path="/m"), state="ready")


def worker(id: str, state: WorkerState, instance: str | None = "i-1", rank: int = 0, ready: int = 0) -> WorkerReport:
    model = None if instance is None else "m"
    holding = Holding(model="m", version="v", ready=list(range(ready)), total=4)
    return WorkerReport(id=id, epoch=1, state=state, model=model, instance=instance, rank=rank, holding=holding)


def test_an_instance_is_as_far_as_its_slowest_rank() -> None:
    found = instances(
        Snapshot(
            workers=[
                worker("w-2", "loading", rank=1, ready=1),
                worker("w-1", "serving", ready=4),
                worker("w-3", "spare", None),
            ]
        )
    )
    assert [(one.id, one.state, one.workers) for one in found] == [("i-1", "loading", ["w-1", "w-2"])]
    assert (found[0].ready_blocks, found[0].total_blocks) == (5, 8)


def test_only_the_leading_rank_of_a_live_instance_says_that_it_is_live() -> None:
    ranks = [worker("w-1", "live"), worker("w-2", "loading", rank=1)]
    [found] = instances(Snapshot(workers=ranks))
    assert found.state == "live"


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], ("cold", 0)),
        (["loading"], ("loading", 0)),
        (["draining"], ("cold", 0)),
        (["loading", "live"], ("live", 1)),
        (["live", "serving", "serving", "loading"], ("ready", 3)),
    ],
)
def test_a_models_state_is_that_of_its_best_instance(states: list[WorkerState], expected: tuple[str, int]) -> None:
    snapshot = Snapshot(workers=[worker(f"w-{i}", state, f"i-{i}") for i, state in enumerate(states)])
    found = status(ENTRY, snapshot)
    assert (found.state, found.instances) == expected


def test_a_model_whose_tokens_are_made_up_says_so() -> None:
    computing, modelled = worker("w-1", "serving"), replace(worker("w-2", "serving", "i-2"), engine="modelled")
    assert status(ENTRY, Snapshot(workers=[computing])).warning is UNSET
    assert status(ENTRY, Snapshot(workers=[computing, modelled])).warning == MADE_UP
    assert warning([computing]) is UNSET


def test_what_is_not_known_is_not_cold() -> None:
    assert (status(ENTRY, None).state, status(ENTRY, None).instances) == (None, None)


def test_the_gateway_is_ready_when_requests_can_at_least_be_held() -> None:
    router = Member(service="router", id="router-0", pid=1, host="h", epoch=1, lease="alive")
    assert why_unavailable(True, Snapshot(members=[router]), ["m"]) is None
    assert why_unavailable(True, Snapshot(members=[router]), []) == "no model is ready"
    assert why_unavailable(True, Snapshot(), ["m"]) == "no router is alive"
    assert why_unavailable(True, None, ["m"]) == "the registry does not answer"
    assert why_unavailable(False, None, ["m"]) == "the bus is disconnected"
