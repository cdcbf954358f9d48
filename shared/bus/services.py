"""What a process answers on NATS: endpoints, each with a subscription, shown as those of micro services."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import nats.errors
from nats.aio.subscription import Subscription as NatsSubscription

from livescale.shared.bus.calls import DRAIN_SECONDS, ServedEndpoint
from livescale.shared.bus.client import Arrived, Deliver
from livescale.shared.bus.codec import Headers, fill
from livescale.shared.bus.contract import Endpoint, ServiceInfo
from livescale.shared.bus.micro import MicroEndpoint, MicroService
from livescale.shared.runtime.clock import Clock

Listen = Callable[[str, Deliver, str], Awaitable[NatsSubscription]]  # subject, deliver, queue group
Reply = Callable[[Arrived, bytes, Headers], None]
Listening = list[tuple[NatsSubscription, MicroEndpoint]]


class NatsServices:
    """The services of one connection, which `listen` and `reply` are of. Subjects begin with `prefix`."""

    def __init__(
        self, prefix: str, clock: Clock, listen: Listen, reply: Reply, is_connected: Callable[[], bool]
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
