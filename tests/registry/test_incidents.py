"""What is told later of deaths, restarts and stalls."""

from livescale.services.registry.incidents import Incidents
from livescale.shared.messages.membership import Member
from livescale.shared.messages.registry import Incident, WasAway

IDS = ("router-0", "worker-0", "worker-1", "host-0")
MEMBERS = [Member(service="worker", id=id, pid=7, host="box", epoch=1, lease="alive") for id in IDS]


def away(id: str, seconds: float, at: float, host: str = "box") -> WasAway:
    return WasAway(service="worker", id=id, host=host, seconds=seconds, at=at)


def told(incidents: Incidents) -> list[tuple[str, str]]:
    return [(each.who, each.text) for each in incidents.last(10)]


def test_most_of_a_machine_at_once_is_the_machine() -> None:
    incidents = Incidents()
    for index, id in enumerate(IDS[:3]):
        incidents.away(away(id, 2.0 + index / 20, 100.0 + index / 10), MEMBERS)
    assert told(incidents) == [("box", "the machine stood still for 2.1 s")]


def test_one_alone_is_that_process() -> None:
    incidents = Incidents()
    incidents.away(away("worker-1", 9.0, 100.0), MEMBERS)
    assert told(incidents) == [("worker-1", "stood still for 9.0 s, and others did not")]


def test_two_machines_and_two_moments_are_told_apart() -> None:
    incidents = Incidents()
    others = [Member(service="worker", id="far", pid=7, host="far", epoch=1, lease="alive")]
    for at in (100.0, 200.0):
        for id in IDS:
            incidents.away(away(id, 2.0, at), [*MEMBERS, *others])
    incidents.away(away("far", 2.0, 100.0, host="far"), [*MEMBERS, *others])
    assert [who for who, _ in told(incidents)] == ["box", "far", "box"]


def test_a_death_and_who_comes_back_are_told_in_order() -> None:
    incidents = Incidents()
    incidents.ended("worker-0", "killed by SIGKILL after 9 s; starting it again", 99.9)
    incidents.died("worker-0", "silent for 2.5 s", 102.4)
    incidents.joined("worker-0", 8, MEMBERS[1], 103.0)
    assert told(incidents) == [
        ("worker-0", "killed by SIGKILL after 9 s; starting it again"),
        ("worker-0", "declared dead: silent for 2.5 s"),
        ("worker-0", "started again, as pid 8 after 7"),
    ]


def test_a_first_join_is_no_incident_and_a_process_that_was_only_away_joins_again() -> None:
    incidents = Incidents()
    incidents.joined("worker-0", 7, None, 1.0)
    incidents.joined("worker-0", 7, MEMBERS[1], 2.0)
    assert told(incidents) == [("worker-0", "joined again as pid 7")]


def test_the_last_are_kept() -> None:
    incidents = Incidents()
    for index in range(2_000):
        incidents.died(f"w-{index}", "silent", float(index))
    assert incidents.last(1) == [Incident(at=1999.0, kind="death", who="w-1999", text="declared dead: silent")]
