"""Spans whose times are known already: what happened is noted as it happens, and becomes spans when it is over. Pure.

A caller is named by its W3C traceparent, a text: it travels in messages, and is kept where nothing else of
OpenTelemetry is known.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

Attribute = str | bool | int | float | list[str]


@dataclass(frozen=True)
class Moment:
    """Something that happened within a span, `at` so many seconds since the epoch."""

    name: str
    at: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedSpan:
    """A span from `start` to `end`, in seconds since the epoch. `error` says in a word why it failed.

    `links` are traceparents of spans of other traces. Attributes that are None are left out.
    """

    name: str
    start: float
    end: float
    attributes: Mapping[str, Attribute | None] = field(default_factory=dict)
    moments: tuple[Moment, ...] = ()
    links: tuple[str, ...] = ()
    children: "tuple[TimedSpan, ...]" = ()
    error: str | None = None


def request_attributes(request_id: str, model: str) -> dict[str, Attribute | None]:
    """The attributes by which the spans of a request are found, in whichever process they were made."""
    return {"livescale.request.id": request_id, "gen_ai.request.model": model}


def scale_traceparent(scale_id: str) -> str:
    """The traceparent of a scale's span. It is made of the scale's id, so that every process knows it, and a planner
    that takes over goes on with it."""
    digest = hashlib.blake2b(scale_id.encode(), digest_size=24).hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-01"
