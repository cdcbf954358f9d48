"""A NATS micro service, by hand: nats-py's own runs handlers one after another.

Answers `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`, so that `nats micro ls|info|stats|ping` show every process.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from livescale.shared.bus.calls import ServedEndpoint
from livescale.shared.bus.contract import ServiceInfo

VERBS = ("PING", "INFO", "STATS")
TYPE = "io.nats.micro.v1.{}_response"


@dataclass(frozen=True)
class MicroEndpoint:
    """An endpoint as NATS micro describes it: its subject, its queue group, and the object that serves it."""

    subject: str
    queue: str
    served: ServedEndpoint

    @property
    def identity(self) -> dict[str, Any]:
        name = self.served.endpoint.call.pattern.rsplit(".", 1)[-1]
        return {"name": name, "subject": self.subject, "queue_group": self.queue}


@dataclass
class MicroService:
    """What a process tells of itself as a micro service. `started` is a moment as RFC 3339 writes it."""

    info: ServiceInfo
    started: str
    endpoints: list[MicroEndpoint] = field(default_factory=list)

    def subjects(self) -> dict[str, str]:
        """Return the control subjects to listen on, each with its verb: for all services, for this service, for this
        process."""
        return {
            subject: verb
            for verb in VERBS
            for subject in (
                f"$SRV.{verb}",
                f"$SRV.{verb}.{self.info.name}",
                f"$SRV.{verb}.{self.info.name}.{self.info.id}",
            )
        }

    def answer(self, verb: str) -> bytes:
        identity: dict[str, Any] = {
            "type": TYPE.format(verb.lower()),
            "name": self.info.name,
            "id": self.info.id,
            "version": self.info.version,
            "metadata": {},
        }
        match verb:
            case "INFO":
                endpoints = [one.identity | {"metadata": self._metadata(one)} for one in self.endpoints]
                identity |= {"description": self.info.description, "endpoints": endpoints}
            case "STATS":
                identity |= {"started": self.started, "endpoints": [self._stats(one) for one in self.endpoints]}
        return msgspec.json.encode(identity)

    def _metadata(self, one: MicroEndpoint) -> dict[str, str]:
        call = one.served.endpoint.call
        return {"description": call.doc, "request": call.request.__name__, "reply": call.reply.__name__}

    def _stats(self, one: MicroEndpoint) -> dict[str, Any]:
        stats = one.served.stats
        return one.identity | {
            "num_requests": stats.num_requests,
            "num_errors": stats.num_errors,
            "last_error": stats.last_error,
            "processing_time": stats.processing_time,
            "average_processing_time": stats.average_processing_time,
        }
