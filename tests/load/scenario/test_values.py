"""Settings of a scenario's system: those of `livescale up` that mean something in a simulation."""

import pytest

from livescale.load.scenario.values import read_settings


def test_what_a_system_is_made_of_is_there_and_what_is_given_besides_goes_first() -> None:
    plain, _ = read_settings({"system": "faasnet"})
    changed, _ = read_settings({"system": "faasnet", "plan-policy": "ring"})
    assert plain["plan_policy"] == "tree"
    assert changed == {**plain, "plan_policy": "ring"}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"port": 8001}, "settings: port has no effect in a simulation; leave it out"),
        ({"system": "none-of-them"}, "settings: .*none-of-them"),
    ],
)
def test_what_is_about_real_processes_or_is_unknown_is_refused_by_name(given: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_settings(given)
