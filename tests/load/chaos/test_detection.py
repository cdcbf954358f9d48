from livescale.load.chaos.detection import all_seconds, detection_sentence, seconds_to_find
from livescale.load.chaos.faults import SeenFault
from livescale.load.chaos.schedule import Fault
from livescale.load.story import Story
from tests.load.chaos.runs import dead, judged, killed, ran, record


def frozen(victim: str, at: float) -> SeenFault:
    return SeenFault(Fault(at, "freeze", victim, seconds=4.0), at, "", victim)


def test_the_first_death_of_the_victim_after_the_fault_counts() -> None:
    deaths = [dead("worker-0", 3.0), dead("worker-1", 5.5), dead("worker-0", 6.0), dead("worker-0", 7.0)]
    assert seconds_to_find(killed("worker-0", 5.0), deaths) == 1.0


def test_a_death_long_after_has_another_cause() -> None:
    assert seconds_to_find(killed("worker-0", 5.0), [dead("worker-0", 60.0)]) is None


def test_a_fault_that_hit_nobody_is_not_found() -> None:
    nobody = SeenFault(Fault(5.0, "kill", "worker-0"), 5.0, "it was not running", "worker-0", struck=False)
    assert seconds_to_find(nobody, [dead("worker-0", 5.5)]) is None
    assert seconds_to_find(SeenFault(Fault(5.0, "stall", "", 2.0), 5.0, ""), [dead("", 6.0)]) is None


def test_kills_and_freezes_are_told_apart() -> None:
    faults, deaths = (killed("host-0", 1.0), frozen("host-0", 20.0)), [dead("host-0", 1.01), dead("host-0", 22.6)]
    assert all_seconds("kill", faults, deaths) == [0.01]
    assert all_seconds("freeze", faults, deaths) == [2.6]
    assert detection_sentence([], []) == ""
    story = Story("m")
    for death in deaths:
        story.on_message(death, death.at)
    said = judged(ran(record(), faults=faults, story=story)).sentence()
    assert "found kills after 10 ms (median of 1, longest 10 ms) and silent processes after 2.60 s" in said
