"""Deaths, restarts and stalls as people read them."""

from datetime import datetime

from livescale.services.cli.incidents_view import IncidentRow, clock_time, incident_rows, tell_incident
from livescale.shared.messages.registry import Incident

AT = datetime(2026, 3, 1, 12, 30, 15, 250_000).astimezone().timestamp()
STALL = Incident(at=AT, kind="stall", who="box", text="the machine stood still for 2.1 s")


def test_a_moment_is_told_in_local_time() -> None:
    assert clock_time(AT) == "12:30:15.250"


def test_an_incident_is_a_line_and_a_row() -> None:
    assert tell_incident(STALL) == "12:30:15.250 box: the machine stood still for 2.1 s"
    assert incident_rows([STALL]) == [IncidentRow(at=AT, who="box", what="the machine stood still for 2.1 s")]
