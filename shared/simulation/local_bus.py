"""The in-process twin of the bus, for tests and the simulator: same contract, same bytes, fixed order.

A `LocalBroker` stands for the server; each actor gets a `LocalBus` of its own from `broker.connect()`. Faults are set
at the broker: `down()` and `up()`, `lose` and `delays`. `lose` says for each message whether it gets lost. `delays`
says for each listener (and each answer) after how many seconds the message arrives: no delay is a loss, two are a
duplicate. As with NATS, the messages of one connection on one subject arrive in order, duplicates aside.
A held bus keeps messages both ways until `release()`, as a stopped process does; `forget()` drops them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVarTuple

from livescale.shared.bus.calls import DRAIN_SECONDS, NO_CONTEXT, Caller, Reply, ServedEndpoint
from livescale.shared.bus.codec import (
    HEADS,
    MAX_PAYLOAD_BYTES,
    TOPIC_HEADERS,
    Headers,
    check_size,
    decode,
    encode,
    fill,
    fill_wildcards,
    pack,
)
from livescale.shared.bus.contract import (
    A,
    Call,
    Context,
    Disconnected,
    Endpoint,
    KeyValue,
    M,
    Q,
    ServiceAbsent,
    ServiceInfo,
    Subscription,
    Topic,
    Withdraw,
)
from livescale.shared.bus.subscription import QueuedSubscription, carried
from livescale.shared.runtime.clock import Clock, SystemClock
from livescale.shared.runtime.rate_limited_log import RateLimitedLog
from livescale.shared.simulation.broker_state import NOTHING_SAID, DelayedDeliveries, LocalKeyValue, Said, Way
from livescale.shared.simulation.listeners import Delays, Deliver, Listener, ListenerTable

Ts = TypeVarTuple("Ts")


@dataclass
class LocalBroker:
    """What the connections share: listeners, the key-value store, and whether the server is up.

    `watchers` see each message as it is sent, lost ones too, and change nothing. On the `wire` each reader
    decodes events for itself, as on a real bus; without it they are decoded once, which is faster.
    """

    clock: Clock = field(default_factory=SystemClock)
    max_payload: int = MAX_PAYLOAD_BYTES
    wire: bool = True
    connected: bool = True
    lose: Callable[[str], bool] = lambda subject: False
    delays: Delays = lambda subject: (0.0,)
    values: dict[str, bytes] = field(default_factory=dict)
    buckets: defaultdict[str, dict[str, bytes]] = field(default_factory=lambda: defaultdict(dict))
    buses: list["LocalBus"] = field(default_factory=list)
    routes: ListenerTable = field(default_factory=ListenerTable)
    watchers: ListenerTable = field(default_factory=ListenerTable)
    arrivals: DelayedDeliveries = field(default_factory=DelayedDeliveries)

    def connect(self, delays: Delays | None = None) -> "LocalBus":
        """Connect a process. With `delays` of its own it looks on: those of all others stay what they would be."""
        bus = LocalBus(self, delays)
        self.buses.append(bus)
        return bus

    def down(self) -> None:
        """Take the server down: pending calls fail, and what is published is dropped."""
        self.connected = False
        for bus in self.buses:
            bus.connection_changed(False)

    def up(self) -> None:
        self.connected = True
        for bus in self.buses:
            bus.connection_changed(True)

    def send(
        self,
        way: Way,
        data: bytes,
        headers: Mapping[str, str],
        reply: Reply | None = None,
        delays: Delays | None = None,
    ) -> int:
        """Hand a message to its listeners, in the order in which they came. Returns how many got it."""
        subject, changes = way.subject, self.routes.changes + self.watchers.changes
        if way.changes != changes:
            way.found, way.watchers, way.changes = self.routes.find(subject), self.watchers.choose(subject), changes
            self.arrivals.keep(way)
        for watcher in way.watchers:
            watcher.deliver(subject, data, headers, None)
        chosen = self.routes.pick(way.found) if way.found.groups else way.found.everyone
        if not self.lose(subject):
            add_all, deliver, usual, latest = self.arrivals.add_all, self._deliver, self.delays, way.latest
            for listener in chosen:
                arrive = partial(deliver, listener, subject, data, headers, reply)
                add_all((delays or listener.delays or usual)(subject), arrive, latest, listener)
        return len(chosen)

    def _deliver(
        self, listener: Listener, subject: str, data: bytes, headers: Mapping[str, str], reply: Reply | None
    ) -> None:
        if self.connected and listener in self.routes.listeners:
            if listener.of is None or listener.of.held is None:
                listener.deliver(subject, data, headers, reply)
            else:
                listener.of.held.append(partial(listener.deliver, subject, data, headers, reply))


class LocalBus:
    """One actor's connection to a LocalBroker. Made by `broker.connect()`."""

    def __init__(self, broker: LocalBroker, delays: Delays | None = None) -> None:
        self.kv: KeyValue = LocalKeyValue(broker.values, lambda: broker.connected)
        self.counts: Counter[str] = Counter()
        self._broker, self._delays = broker, delays
        self._caller = Caller(broker.clock, self._send)
        self._log = RateLimitedLog(broker.clock.now)
        self._listeners: list[Listener] = []
        self._serving: list[Listener] = []  # of what is served
        self._subscriptions: list[QueuedSubscription[Any]] = []
        self._served: list[ServedEndpoint] = []
        self._watchers: list[Callable[[bool], None]] = []
        self._closed = False
        self.held: list[Callable[[], object]] | None = None
        self._said: dict[str, Said] = {}  # the last message of each topic

    def bucket(self, name: str, seconds: float, most_bytes: int) -> KeyValue:
        return LocalKeyValue(self._broker.buckets[name], lambda: self._broker.connected)  # which keeps all it is given

    @property
    def connected(self) -> bool:
        return self._broker.connected and not self._closed

    def publish(self, topic: Topic[M], message: M, **holes: str) -> None:
        data = encode(message, json=topic.json)
        holes_then, way, sent = self._said.get(topic.pattern, NOTHING_SAID)
        if data != sent or holes != holes_then:  # heartbeats often say the same again
            subject = fill(topic.pattern, holes)
            way = way if way.subject == subject else self._broker.arrivals.way(self, subject)
            sent = self._checked(topic, subject, data)
            self._said[topic.pattern] = holes, way, sent
        if not self._broker.connected or self._closed:
            self.counts["dropped_disconnected"] += 1
            return
        self.counts["sent"] += 1
        if self.held is None:  # as `_pass`, without a call
            self._broker.send(way, sent, TOPIC_HEADERS[topic.json])
        else:
            self._pass(self._broker.send, way, sent, TOPIC_HEADERS[topic.json])

    def _checked(self, topic: Topic[M], subject: str, data: bytes) -> bytes:
        """The bytes that are sent. Raises Undecodable: a message of the wrong type is its sender's mistake."""
        check_size(subject, HEADS[topic.json], data, self._broker.max_payload)
        message = decode(topic.type, data, json=topic.json)
        return data if self._broker.wire else carried(topic, subject, data, message)

    async def call(
        self, call: Call[Q, A], message: Q, *, timeout: float, context: Context = NO_CONTEXT, **holes: str
    ) -> A:
        return await self._caller.call(fill(call.pattern, holes), call, message, timeout, context)

    async def subscribe(self, topic: Topic[M], *, limit: int = 4096, **holes: str) -> Subscription[M]:
        subscription = QueuedSubscription(topic, limit, self.counts, self._log)
        wanted = fill_wildcards(topic.pattern, holes)

        listener = Listener(wanted, "", subscription.deliver, self._delays, self)

        async def leave() -> None:
            self._subscriptions.remove(subscription)
            self._leave(listener)

        subscription.on_close(leave)
        self._subscriptions.append(subscription)
        self._listen(listener)
        return subscription

    async def serve(self, info: ServiceInfo, endpoints: list[Endpoint]) -> Withdraw:
        listening: list[tuple[Listener, ServedEndpoint]] = []
        for endpoint in endpoints:
            served = ServedEndpoint(endpoint, self._broker.clock)
            self._served.append(served)
            subject, queue = fill(endpoint.call.pattern, endpoint.holes), info.name if endpoint.call.queue else ""
            listener = Listener(subject, queue, self._deliver_to(served), of=self)
            self._serving.append(listener)
            self._listen(listener)
            listening.append((listener, served))
        return partial(self._withdraw, listening)

    async def _withdraw(self, listening: Sequence[tuple[Listener, ServedEndpoint]]) -> None:
        for listener, served in listening:
            self._serving.remove(listener)
            self._leave(listener)
            self._served.remove(served)
            await served.drain(DRAIN_SECONDS if self.connected else 0)

    def hold(self) -> None:
        """Hold back all that comes in or goes out until `release`."""
        self.held = self.held or []

    def release(self) -> None:
        held, self.held = self.held or [], None
        for act in held:
            act()

    def forget(self) -> None:
        """Drop what waits for `release`, as when a network is cut."""
        if self.held is not None:
            self.held.clear()

    def _pass(self, act: Callable[[*Ts], object], *given: *Ts) -> None:
        if self.held is None:
            act(*given)
        else:
            self.held.append(partial(act, *given))

    def watch_connection(self, on_change: Callable[[bool], None]) -> None:
        self._watchers.append(on_change)

    async def flush(self) -> None:
        if not self.connected:
            raise Disconnected("the bus is down")

    async def keep_events(self) -> None:
        await self.flush()  # nothing is kept here

    async def drain(self) -> None:
        """Take no more calls, and answer those in hand. Idempotent."""
        for listener in self._serving:
            self._leave(listener)
        for served in self._served:
            await served.drain(DRAIN_SECONDS if self.connected else 0)

    async def close(self) -> None:
        if self._closed:
            return
        for listener in list(self._listeners):
            self._leave(listener)
        await self.drain()
        for subscription in self._subscriptions:
            subscription.end()
        self._closed = True
        self._caller.fail_all()
        self._broker.buses.remove(self)

    def connection_changed(self, connected: bool) -> None:
        if not connected:
            self._caller.fail_all()
        for on_change in self._watchers:
            on_change(connected)

    def _listen(self, listener: Listener) -> None:
        self._listeners.append(listener)
        self._broker.routes.add(listener)

    def _leave(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
            self._broker.routes.remove(listener)

    def _send(self, subject: str, data: bytes, headers: Headers, token: str) -> None:
        check_size(subject, pack(headers), data, self._broker.max_payload)
        if not self.connected:
            raise Disconnected("the bus is down")

        def reply(body: bytes, extra: Headers) -> None:
            check_size(f"the answer of {subject}", pack(extra), body, self._broker.max_payload)
            answer = partial(self._pass, self._answer, token, body, extra)
            self._broker.arrivals.add_all((self._delays or self._broker.delays)(f"answer.{subject}"), answer)

        send = partial(self._broker.send, self._broker.arrivals.way(self, subject), data, headers, reply, self._delays)
        if self.held is not None:
            self.held.append(send)
        elif send() == 0:
            raise ServiceAbsent(f"no process listens on {subject}")

    def _answer(self, token: str, body: bytes, extra: Headers) -> None:
        if self.connected:
            self._caller.answer(token, body, extra)

    def _deliver_to(self, served: ServedEndpoint) -> Deliver:
        def deliver(subject: str, data: bytes, headers: Mapping[str, str], reply: Reply | None) -> None:
            if reply is not None:
                served.accept(data, headers, lambda body, extra: self._pass(reply, body, extra))

        return deliver
