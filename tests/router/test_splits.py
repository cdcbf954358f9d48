"""Which way a request goes: split where that keeps the pace, local where it does not or nothing is left to decode."""

import pytest

from livescale.services.router.forecast import EngineSpeed, Slos
from livescale.services.router.instances import InstanceView
from livescale.services.router.requests import Waiting
from livescale.services.router.routing import choose_split
from livescale.shared.messages.requests import Submit
from tests.router.examples import NOW, load, report, request

SPEED = EngineSpeed(
    prefill=10_000.0, step=0.010, row=0.001, beside_tokens=110.0, beside_seconds=0.011, slots=99, kv_tokens=999_999
)


def way(one: Submit, here: int, there: int, tbt: float, speed: EngineSpeed | None = SPEED) -> tuple[bool, str]:
    """The way with so many requests that decode here and there."""
    prefill, decode = InstanceView("p"), InstanceView("d")
    prefill.update(report("p", load(slots=99, blocks=999), role="prefill"), NOW)
    for number in range(here):
        prefill.admit(Waiting(request(f"h{number}"), number, NOW), NOW)
    prefill.admit(Waiting(request("elsewhere"), 99, NOW), NOW, "e")
    decode.update(report("d", load(slots=99, running=there), role="decode"), NOW)
    found = choose_split(one, prefill, decode, speed, Slos(1.0, tbt))
    return found.split, found.reason


@pytest.mark.parametrize(
    ("here", "there", "tbt", "split"),
    [
        (0, 4, 0.0150, True),  # 15 ms there is in time
        (0, 4, 0.0149, True),  # it is late, and still sooner than 22 ms here
        (0, 12, 0.0149, False),  # 23 ms there
        (1, 12, 0.0149, True),  # 24 ms here
        (0, 12, 0.0230, True),
    ],
)
def test_it_is_split_where_that_is_in_time_or_sooner(here: int, there: int, tbt: float, split: bool) -> None:
    assert way(request("r"), here, there, tbt)[0] == split


def test_the_reason_has_the_numbers() -> None:
    assert way(request("r"), 0, 12, 0.0149) == (False, "23 ms a token there, 22 ms here, 15 ms are in time")


def test_a_request_of_one_token_is_not_handed_over() -> None:
    assert way(request("r", max_tokens=1), 9, 0, 1.0) == (False, "its first token is its last")
    assert not way(request("r", max_tokens=6, generated=[1] * 5), 9, 0, 1.0)[0]
    assert way(request("r", max_tokens=2), 9, 0, 1.0)[0]


def test_without_measurements_it_is_split() -> None:
    assert way(request("r"), 0, 90, 0.001, speed=None) == (True, "how long steps take is not measured yet")
