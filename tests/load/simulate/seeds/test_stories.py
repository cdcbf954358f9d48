"""Stories bring faults together, follow from chance alone, and end before a planner would lose its patience."""

from random import Random

import pytest

from livescale.load.simulate.seeds.random_cluster import LOAD_PATIENCE_SECONDS
from livescale.load.simulate.seeds.stories import STORIES, Cast, Story, up_and_down

PROCESSES = ["registry-0", "planner-0", "router-0", "host-0", "host-1", "worker-0", "worker-1", "worker-2"]
AT = 3.0


def cast(seed: int) -> Cast:
    return Cast(Random(seed), PROCESSES, ["m", "n"])


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_story_names_who_there_is_and_is_the_same_every_time(story: Story) -> None:
    for seed in range(30):
        faults = story(cast(seed), AT)
        assert faults == story(cast(seed), AT)
        assert all(fault.at >= AT for fault in faults)
        assert all(fault.seconds < LOAD_PATIENCE_SECONDS for fault in faults)
        named = {fault.who for fault in faults if fault.what not in ("scale", "role") and fault.who}
        assert named <= set(PROCESSES)


def test_where_nothing_goes_wrong_an_operator_commands() -> None:
    assert all(fault.is_command for seed in range(30) for fault in up_and_down(cast(seed), AT))
