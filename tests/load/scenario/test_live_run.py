"""Runs of scenarios on real systems: what only a simulation can do is refused."""

from pathlib import Path

import pytest

from livescale.load.scenario.live_run import live_settings
from tests.load.scenario.scenarios import SMALL, two_hosts


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SMALL, "faults: live runs have none"),
        (SMALL.partition("faults:")[0], r"models\[0\].path: a real system reads parameters"),
        (SMALL.partition("faults:")[0].replace("+zigzag", "ideal"), "system: no real link takes no time"),
    ],
)
def test_what_only_a_simulation_can_do_is_refused_by_name(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        live_settings(two_hosts(tmp_path, text))
