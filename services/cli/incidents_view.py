"""Deaths, restarts and stalls of processes and machines, for people to read."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.registry import AskIncidents, Incident
from livescale.shared.subjects import INCIDENTS

ASKED = 200
CALL_SECONDS = 5.0


def clock_time(at: float) -> str:
    """The local time of a moment in seconds since the epoch."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]


class IncidentRow(msgspec.Struct, frozen=True, kw_only=True):
    """An incident of a process or a machine. `at` is in seconds since the epoch."""

    at: float
    who: str
    what: str


async def ask_incidents(bus: Bus, limit: int = ASKED) -> list[Incident]:
    """The registry's last incidents; an empty list where it does not answer, as the rest is worth showing."""
    with suppress(BusError):
        return (await bus.call(INCIDENTS, AskIncidents(limit=limit), timeout=CALL_SECONDS)).incidents
    return []


def incident_rows(incidents: Iterable[Incident]) -> list[IncidentRow]:
    return [IncidentRow(at=each.at, who=each.who, what=each.text) for each in incidents]


def tell_incident(incident: Incident) -> str:
    return f"{clock_time(incident.at)} {incident.who}: {incident.text}"
