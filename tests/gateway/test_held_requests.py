"""Requests that wait while no router can be reached: new ones up to a bound, accepted ones always."""

from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry, Gauge

from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.held_requests import HeldRequests


def test_a_new_request_too_many_is_refused_and_one_that_was_accepted_is_held() -> None:
    registry = CollectorRegistry()
    held = HeldRequests(Gauge("held", "Held", registry=registry), most=2)
    with ExitStack() as waiting:
        waiting.enter_context(held.hold(is_new=True))
        waiting.enter_context(held.hold(is_new=False))
        with pytest.raises(ApiError, match="2 requests already wait") as refused, held.hold(is_new=True):
            raise AssertionError("it was held")
        assert refused.value.status == 429
        waiting.enter_context(held.hold(is_new=False))
        assert registry.get_sample_value("held") == 3
    assert registry.get_sample_value("held") == 0
    with held.hold(is_new=True):
        assert registry.get_sample_value("held") == 1


def test_a_request_that_ends_with_an_error_makes_room() -> None:
    held = HeldRequests(Gauge("held", "Held", registry=CollectorRegistry()), most=1)
    with pytest.raises(ValueError, match="the client went away"), held.hold(is_new=True):
        raise ValueError("the client went away")
    with held.hold(is_new=True):
        pass
