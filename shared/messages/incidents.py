"""What happened to processes and machines: ends, sleeps, and the list that the registry keeps of them."""

from typing import Literal

from livescale.shared.messages.membership import ServiceName
from livescale.shared.messages.message import Amount, Message, Name, Positive


class WasAway(Message, frozen=True, kw_only=True):
    """A process -> registry: it slept for so many `seconds`, as it was stopped or its machine had no processor for it.
    It woke up less than a heartbeat before `at`."""

    service: ServiceName
    id: Name
    host: Name
    seconds: Amount
    at: Amount


class ProcessEnded(Message, frozen=True, kw_only=True):
    """Event of a supervisor: how a process ended, or why it was killed, and what is done about it."""

    id: Name
    reason: str
    at: Amount


class Incident(Message, frozen=True, kw_only=True):
    """Something that happened to a process or a machine, which `who` names."""

    at: Amount
    kind: Literal["death", "end", "start", "stall"]
    who: Name
    text: str


class AskIncidents(Message, frozen=True, kw_only=True):
    """Ask the registry for the last incidents; newest last."""

    limit: Positive = 20


class IncidentList(Message, frozen=True, kw_only=True):
    """The registry's answer: incidents, the newest last."""

    incidents: list[Incident] = []
