"""The bus on NATS. nats-py does the protocol; what it does not do well is done here and in the modules beside.

Requests and answers go through one inbox of our own, whose pending calls fail at once when the connection breaks.
Handlers and readers never run on the read path. A watchdog asks the server for an echo, because a client whose
read loop died still calls itself connected. When the connection is closed for good, `on_closed` lets the process exit.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import livescale.shared.bus.without_websockets  # noqa: F401

# isort: split
import structlog
from nats.aio.subscription import Subscription as NatsSubscription

from livescale.shared.bus.calls import NO_CONTEXT, Caller
from livescale.shared.bus.client import Arrived, Deliver, SendQueue, SturdyClient, publication
from livescale.shared.bus.codec import HEADS, Headers, bucket_name, check_size, encode, fill, fill_wildcards, pack
from livescale.shared.bus.connection import NO_FILES, Callbacks, call_safely, close, connect
from livescale.shared.bus.contract import (
    EVENTS,
    A,
    BusError,
    Call,
    CallTimeout,
    Context,
    Disconnected,
    Endpoint,
    KeyValue,
    M,
    Q,
    ServiceInfo,
    Subscription,
    Topic,
    Withdraw,
)
from livescale.shared.bus.identity import NatsFiles
from livescale.shared.bus.jetstream import NatsKeyValue, keep_events
from livescale.shared.bus.services import NatsServices
from livescale.shared.bus.subscription import QueuedSubscription
from livescale.shared.runtime.clock import Clock, SystemClock
from livescale.shared.runtime.rate_limited_log import RateLimitedLog

FLUSH_SECONDS, WATCHDOG_SECONDS = 5.0, 5.0
SETTLE_SECONDS, AGAIN_SECONDS = 30.0, 0.1  # long, as a server that gets no CPU for a while has lost nothing

log = structlog.get_logger()


class NatsBus:
    """One process's connection. Made by `NatsBus.connect`."""

    @classmethod
    async def connect(
        cls,
        url: str,
        namespace: str,
        name: str,
        *,
        files: NatsFiles = NO_FILES,
        timeout: float = 10.0,
        on_closed: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> "NatsBus":
        """Connect to the server at `url`; subjects lie below `namespace`, and `name` names this process to the server.

        Raises Disconnected when the server cannot be reached within `timeout` seconds, BusError for bad `files`.
        """
        bus = cls(namespace, on_closed, clock or SystemClock())
        callbacks = Callbacks(bus._lost, bus._returned, bus._closed, bus._error)
        await connect(bus._client, url, name, timeout, callbacks, files)
        bus._inbox = bus._client.new_inbox()
        try:
            await bus._start(timeout)
        except BaseException:
            await bus.close()
            raise
        return bus

    def __init__(self, namespace: str, on_closed: Callable[[], None], clock: Clock) -> None:
        self._client = SturdyClient(self._error)
        self._prefix = f"livescale.{namespace}."
        self._clock = clock
        self.counts: Counter[str] = Counter()
        self.kv: KeyValue = NatsKeyValue(self._client, bucket_name(namespace))
        self._namespace = namespace
        self._on_closed = on_closed
        self._log = RateLimitedLog(clock.now)
        self._outgoing = SendQueue(self._client, self.counts)
        self._caller = Caller(clock, self._send)
        self._inbox = ""
        self._services = NatsServices(self._prefix, clock, self._listen, self._reply, lambda: self.connected)
        self._subscriptions: list[QueuedSubscription[Any]] = []
        self._watchers: list[Callable[[bool], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False

    def bucket(self, name: str, seconds: float, most_bytes: int) -> KeyValue:
        return NatsKeyValue(self._client, bucket_name(self._namespace, name), seconds, most_bytes)

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected)

    def publish(self, topic: Topic[M], message: M, **holes: str) -> None:
        subject, data = self._prefix + fill(topic.pattern, holes), encode(message, json=topic.json)
        head = HEADS[topic.json]
        check_size(subject, head, data, self._client.max_payload)
        self._outgoing.put(publication(subject, "", head, data))

    async def call(
        self, call: Call[Q, A], message: Q, *, timeout: float, context: Context = NO_CONTEXT, **holes: str
    ) -> A:
        return await self._caller.call(self._prefix + fill(call.pattern, holes), call, message, timeout, context)

    async def subscribe(self, topic: Topic[M], *, limit: int = 4096, **holes: str) -> Subscription[M]:
        subscription = QueuedSubscription(topic, limit, self.counts, self._log)

        def deliver(message: Arrived) -> None:
            subscription.deliver(message.subject.removeprefix(self._prefix), message.data)

        theirs = await self._listen(self._prefix + fill_wildcards(topic.pattern, holes), deliver)
        subscription.on_close(partial(self._unsubscribe, subscription, theirs))
        self._subscriptions.append(subscription)
        await self._settle(SETTLE_SECONDS)
        return subscription

    async def serve(self, info: ServiceInfo, endpoints: list[Endpoint]) -> Withdraw:
        listening = await self._services.add(info, endpoints)
        await self._settle(SETTLE_SECONDS)
        return partial(self._services.withdraw, info, listening)

    def watch_connection(self, on_change: Callable[[bool], None]) -> None:
        self._watchers.append(on_change)

    async def flush(self) -> None:
        # An echo through our own inbox: the server handles what one client sends in order. nats-py's flush is no
        # barrier, its PING overtakes what waits in its buffer.
        await self._caller.exchange("the NATS server", self._send_echo, FLUSH_SECONDS)

    async def keep_events(self) -> None:
        """Have the server keep all events for a day (JetStream). Raises BusError."""
        await keep_events(self._client, f"livescale-{self._namespace}-events", self._prefix + EVENTS)

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        await self.drain()
        for subscription in self._subscriptions:
            subscription.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await close(self._client)
        self._caller.fail_all()

    async def _settle(self, seconds: float) -> None:
        """Wait until the server has our subscriptions; after a reconnect it is told them again. Raises as `flush`."""
        last = self._clock.now() + seconds
        while True:
            try:
                return await self.flush()
            except (CallTimeout, Disconnected) as error:
                if self._closing or self._client.is_closed or self._clock.now() >= last:
                    raise
                self._log.warning("bus_slow", "the echo", error=str(error))
            await asyncio.sleep(AGAIN_SECONDS)

    async def _start(self, seconds: float) -> None:
        self._tasks = [
            asyncio.create_task(self._outgoing.run(), name="bus outgoing"),
            asyncio.create_task(self._watch(), name="bus watchdog"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)
        await self._listen(f"{self._inbox}.*", self._on_answer)
        await self._settle(seconds)

    async def _listen(self, subject: str, deliver: Deliver, queue: str = "") -> NatsSubscription:
        if self._closing or not self.connected:
            raise Disconnected(f"the bus is down; cannot listen on {subject}")
        return await self._client.listen(subject, queue, deliver)

    async def _unsubscribe(self, ours: QueuedSubscription[Any], theirs: NatsSubscription) -> None:
        self._subscriptions.remove(ours)
        if not self._closing and not self._client.is_closed:
            await theirs.unsubscribe()

    def _reply(self, request: Arrived, data: bytes, headers: Headers) -> None:
        head = pack(headers)
        check_size(f"the answer of {request.subject}", head, data, self._client.max_payload)
        if request.reply:
            self._outgoing.put(publication(request.reply, "", head, data))

    def _send(self, subject: str, data: bytes, headers: Headers, token: str) -> None:
        head = pack(headers)
        check_size(subject, head, data, self._client.max_payload)
        if not self._outgoing.put(publication(subject, f"{self._inbox}.{token}", head, data)):
            raise Disconnected(f"the bus is down; {subject} was not asked")

    def _send_echo(self, token: str) -> None:
        if not self._outgoing.put(publication(f"{self._inbox}.{token}", "", pack({}), b"")):
            raise Disconnected("the bus is down")

    def _on_answer(self, message: Arrived) -> None:
        self._caller.answer(message.subject.rsplit(".", 1)[1], message.data, message.headers)

    async def drain(self) -> None:
        """Take no more calls and answer those in hand, unless the connection is lost. Idempotent."""
        await self._services.drain()
        if self.connected and not any(task.done() for task in self._tasks):
            with suppress(BusError):
                await self.flush()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCHDOG_SECONDS)
            if not self.connected:
                continue
            try:
                await self.flush()
            except BusError as error:
                log.warning("bus_echo_lost", error=str(error))
                await self._client.force_reconnect()

    def _lost(self) -> None:
        self._outgoing.drop_all()
        self._caller.fail_all()
        if self._tasks and not self._closing:
            log.warning("bus_disconnected")
            self._tell(False)

    def _returned(self) -> None:
        self.counts["reconnects"] += 1
        log.info("bus_reconnected")
        self._tell(True)

    def _closed(self) -> None:
        if self._tasks and not self._closing:
            log.error("bus_closed", error=str(self._client.last_error))
            self._on_closed()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not self._closing and not task.cancelled():
            log.error("bus_task_ended", task=task.get_name(), exc_info=task.exception())
            self._on_closed()

    def _error(self, error: Exception) -> None:
        self.counts["errors"] += 1
        self._log.warning("bus_error", type(error).__name__, error=str(error))

    def _tell(self, connected: bool) -> None:
        for on_change in self._watchers:
            call_safely(on_change, connected)
