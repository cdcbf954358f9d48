"""How many tokens a request may have: those its client asked for, or as many as there is room for."""

from typing import Any

import pytest

from livescale.services.router.effects import AdmitTo, Effect, Finish
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.requests import Submit
from tests.router.made import NOW, hear, load, policy, report, request


def max_tokens(effects: list[Effect]) -> list[tuple[str, int]]:
    return [(one.worker, one.request.max_tokens) for one in effects if isinstance(one, AdmitTo)]


def open_ended(id: str, prompt: int = 10, **more: Any) -> Submit:
    """Of a client that named no number of tokens: as many as the context has room for."""
    return request(id, prompt=prompt, max_tokens=1000, open_ended=True, **more)


def test_whoever_named_no_number_of_tokens_gets_what_the_largest_instance_has_room_for() -> None:
    made = policy(report("a", load(blocks=4)), report("b", load(blocks=5)))
    made.submit(open_ended("r-1"), NOW)
    assert max_tokens(made.dispatch(NOW)) == [("b", 10)]
    made = policy(report("a", load(blocks=1000)))
    made.submit(open_ended("r-1"), NOW)
    assert max_tokens(made.dispatch(NOW)) == [("a", 1000)]


def test_what_was_open_ended_is_fitted_anew_wherever_it_resumes() -> None:
    made = policy(report("a", load(blocks=5)))
    made.submit(open_ended("r-1"), NOW)
    [effect] = made.dispatch(NOW)
    assert isinstance(effect, AdmitTo)
    made.refused(effect, 503, "not now")
    hear(made, report("a", state="draining"))
    hear(made, report("b", load(blocks=10)))
    assert max_tokens(made.dispatch(NOW)) == [("b", 30)]


def test_what_has_more_tokens_than_fit_where_it_resumes_is_at_its_length() -> None:
    made = policy(report("a", load(blocks=5)))
    made.submit(open_ended("r-1", generated=[5] * 10), NOW)
    assert made.dispatch(NOW) == [Finish("gateway-0", "r-1", 10, "length", None)]


def test_a_prompt_that_leaves_no_room_never_fits_whatever_is_asked() -> None:
    made = policy(report("a", load(blocks=4)))
    made.submit(open_ended("fits", prompt=15), NOW)
    with pytest.raises(Refusal, match="need room for 17 tokens; the largest instance has 16"):
        made.submit(open_ended("not", prompt=16), NOW)
