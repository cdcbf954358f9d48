"""What a process answers on NATS: endpoints, each with a subscription, shown as those of micro services.

nats-py's own micro service runs handlers one after another, so this one is made by hand. It answers `$SRV.PING`,
`$SRV.INFO` and `$SRV.STATS`, so that `nats micro ls|info|stats|ping` show every process.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import nats.errors
from nats.aio.subscription import Subscription as NatsSubscription

from livescale.shared.bus.calls import DRAIN_SECONDS, ServedEndpoint
from livescale.shared.bus.client import Arrived, Deliver
from livescale.shared.bus.codec import Headers, fill
from livescale.shared.bus.contract import Endpoint, ServiceInfo
from livescale.shared.runtime.clock import Clock

VERBS = ("PING", "INFO", "STATS")
TYPE = "io.nats.micro.v1.{}_response"

Listen = Callable[[str, Deliver, str], Awaitable[NatsSubscription]]  # subject, deliver, queue group
ReplyTo = Callable[[Arrived, bytes, Headers], None]


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


Listening = list[tuple[NatsSubscription, MicroEndpoint]]


class NatsServices:
    """The services of one connection, which `listen` and `reply` are of. Subjects begin with `prefix`."""

    def __init__(
        self, prefix: str, clock: Clock, listen: Listen, reply: ReplyTo, is_connected: Callable[[], bool]
    ) -> None:
        self._prefix = prefix
        self._clock = clock
        self._listen = listen
        self._reply = reply
        self._is_connected = is_connected
        self.by_id: dict[str, MicroService] = {}
        self._subscriptions: list[Any] = []  # nats-py's; it does not say of what type all of their methods are

    async def add(self, info: ServiceInfo, endpoints: list[Endpoint]) -> Listening:
        """Listen for calls of these endpoints of a service. Raises Disconnected."""
        service = self.by_id.get(info.id) or await self._register(info)
        listening: Listening = []
        for endpoint in endpoints:
            subject = self._prefix + fill(endpoint.call.pattern, endpoint.holes)
            served = ServedEndpoint(endpoint, self._clock)
            queue = info.name if endpoint.call.queue else ""
            subscription = await self._listen(subject, partial(self._accept, served), queue)
            listening.append((subscription, MicroEndpoint(subject, queue, served)))
            self._subscriptions.append(subscription)
            service.endpoints.append(listening[-1][1])
        return listening

    async def withdraw(self, info: ServiceInfo, listening: Listening) -> None:
        """Listen no more to what `add` returned, and answer the calls in hand."""
        for subscription, endpoint in listening:
            self._subscriptions.remove(subscription)
            self.by_id[info.id].endpoints.remove(endpoint)
            with suppress(nats.errors.Error):  # it was drained already, or the connection is closed
                await subscription.unsubscribe()
            await endpoint.served.drain(self._drain_seconds)

    async def drain(self) -> None:
        """Take no more calls and answer those in hand, unless the connection is lost. Idempotent."""
        if self._is_connected():
            with suppress(nats.errors.Error):
                await asyncio.gather(*(subscription.drain() for subscription in self._subscriptions))
        seconds = self._drain_seconds
        endpoints = [endpoint for service in self.by_id.values() for endpoint in service.endpoints]
        await asyncio.gather(*(endpoint.served.drain(seconds) for endpoint in endpoints))

    @property
    def _drain_seconds(self) -> float:
        return DRAIN_SECONDS if self._is_connected() else 0.0

    async def _register(self, info: ServiceInfo) -> MicroService:
        service = MicroService(info, datetime.now(UTC).isoformat().replace("+00:00", "Z"))
        self.by_id[info.id] = service
        for subject, verb in service.subjects().items():

            def tell(message: Arrived, verb: str = verb) -> None:
                self._reply(message, service.answer(verb), {})

            await self._listen(subject, tell, "")
        return service

    def _accept(self, served: ServedEndpoint, message: Arrived) -> None:
        served.accept(message.data, message.headers, partial(self._reply, message))
