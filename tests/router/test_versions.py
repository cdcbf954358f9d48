"""A request that has tokens goes on by the version that made them, or not at all."""

import pytest

from livescale.services.router.effects import AdmitTo, FinishRequest
from livescale.shared.bus.contract import Refusal
from tests.router.examples import NOW, entry, hear, lease, policy, report, request


def test_only_instances_of_its_version_take_a_resumed_request() -> None:
    router = policy(report("w-1", version="v-1"), report("w-2", version="v-2"))
    router.on_models([entry("m", version="v-2")])
    router.submit(request("r", generated=[1], version="v-1"), NOW)
    [effect] = router.dispatch(NOW)
    assert isinstance(effect, AdmitTo)
    assert effect.worker == "w-1"


def test_a_request_whose_version_is_gone_ends_with_an_error() -> None:
    router = policy(report("w-1", version="v-1"), report("w-2", version="v-2"))
    router.on_models([entry("m", version="v-2")])
    hear(router, report("w-1", version="v-1", state="draining"))
    router.submit(request("r", generated=[1, 2], version="v-1"), NOW)
    [effect] = router.dispatch(NOW)
    assert isinstance(effect, FinishRequest)
    assert (effect.finish_reason, effect.code, effect.index) == ("error", 503, 2)
    assert "is gone" in str(effect.error)
    router.submit(request("new"), NOW)
    assert isinstance(router.dispatch(NOW)[0], AdmitTo)


def test_a_request_whose_version_is_the_model_s_own_waits_for_an_instance() -> None:
    router = policy(report("w-1", version="v-1"))
    router.on_models([entry("m", version="v-1")])
    router.on_lease(lease("w-1", "dead"))
    router.submit(request("r", generated=[1], version="v-1"), NOW)
    assert router.dispatch(NOW) == []


def test_a_removed_model_takes_no_requests_and_ends_those_that_wait() -> None:
    router = policy()
    router.submit(request("waiting"), NOW)
    [effect] = router.on_models([entry("m", state="removing")])
    assert isinstance(effect, FinishRequest)
    assert (effect.request_id, effect.code) == ("waiting", 404)
    with pytest.raises(Refusal, match="was removed") as refused:
        router.submit(request("late"), NOW)
    assert refused.value.code == 404
