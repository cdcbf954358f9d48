"""What an actor may ask of the bus. Two classes keep this contract: `NatsBus` and, for virtual time, `LocalBus`.

A `Topic` is one-way, a `Call` is answered; each is tied to the types of its messages, so that no caller decodes by
hand.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from livescale.shared.messages.message import Message

EVENTS = "evt.>"  # subjects of what people and followers of a scale read; `Bus.keep_events` keeps it

M = TypeVar("M", bound=Message)
Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


class Ack(Message, frozen=True):
    """The answer of a call that was carried out and has nothing to return."""


@dataclass(frozen=True)
class Topic(Generic[M]):
    """A one-way subject.

    `pattern` may have named holes, as `hb.{service}.{id}`; with `json` people can read messages.
    """

    pattern: str
    type: Any  # a Message class, or a union of them
    json: bool = False


@dataclass(frozen=True)
class Call(Generic[Q, A]):
    """A question and its answer.

    With `queue` one process of the service answers, whichever it is, and not all of them.
    """

    pattern: str
    request: type[Q]
    reply: type[A]
    queue: bool = False
    doc: str = ""


class BusError(Exception):
    """The base class of every error that the bus raises."""


class ServiceAbsent(BusError):
    """No process listens on the subject of a call."""


class CallTimeout(BusError):
    """A call was not answered before its timeout or deadline."""


class Disconnected(BusError):
    """The connection broke while the call was pending, or is down."""


class TooLarge(BusError):
    """Payload and headers exceed the server's limit; names the subject, the size and the limit."""


class Refusal(BusError):
    """The other side refused, with a code of HTTP's meaning (400, 404, 408, 409, 422, 429, 499, 503, 504).

    Handlers raise it; callers catch it. `retry_after_ms` goes with 429 and 503.
    """

    def __init__(self, code: int, message: str, retry_after_ms: int | None = None) -> None:
        super().__init__(code, message, retry_after_ms)  # as given: so it passes between processes
        self.code = code
        self.message = message
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True)
class Context:
    """What travels beside a call: deadline in seconds since the epoch, epoch of the caller, request id, trace."""

    deadline: float | None = None
    epoch: int | None = None
    request_id: str | None = None
    traceparent: str | None = None


class Received(msgspec.Struct, Generic[M], frozen=True):
    """A message with the values of its subject's holes (`{"service": "worker", "id": "worker-1"}`)."""

    message: M
    holes: Mapping[str, str]


Handler = Callable[[Any, Context], Awaitable[Message]]
Withdraw = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Endpoint:
    """A call that `handler` answers.

    At most `limit` handlers run at the same time; further calls are refused with 429.
    """

    call: Call[Any, Any]
    handler: Handler
    holes: Mapping[str, str] = field(default_factory=dict)
    limit: int = 1024


@dataclass(frozen=True)
class ServiceInfo:
    """How a process shows itself to `nats micro ls`, which skips services that have no description."""

    name: str
    id: str
    description: str
    version: str = "0.1.0"


class Subscription(Protocol[M]):
    """What a reader of a topic has: `async for received in subscription`, which ends when it is closed.

    Its queue is bounded; `dropped` counts the messages that did not fit.
    """

    dropped: int

    def __aiter__(self) -> AsyncIterator[Received[M]]: ...

    async def each(self, take: Callable[[Received[M]], None]) -> None:
        """Call `take` with each message, until it is closed: as a loop over it, in the same turns of the event loop,
        for less work. It has one reader then. What `take` raises ends it."""

    async def close(self) -> None: ...


class KeyValue(Protocol):
    """Small declared state. Keys are dotted words. After a reconnect watches start again from a full snapshot."""

    async def put(self, key: str, value: Message) -> None: ...

    async def get(self, key: str, type: type[M]) -> M | None: ...

    async def delete(self, key: str) -> None: ...

    async def list(self, prefix: str, type: type[M]) -> dict[str, M]: ...


class Bus(Protocol):
    """One connection to the bus. Messages that cannot be decoded are counted, logged (rate-limited) and dropped."""

    kv: KeyValue
    counts: Counter[str]  # messages by outcome: sent, dropped_disconnected, undecodable, ...

    @property
    def connected(self) -> bool: ...

    def publish(self, topic: Topic[M], message: M, **holes: str) -> None:
        """Send at most once, without waiting.

        While disconnected the message is dropped and counted. Raises TooLarge.
        """

    async def call(self, call: Call[Q, A], message: Q, *, timeout: float, context: Context = ..., **holes: str) -> A:
        """Ask, and wait for the answer. Raises ServiceAbsent, CallTimeout, Disconnected, TooLarge, Refusal."""

    async def subscribe(self, topic: Topic[M], *, limit: int = 4096, **holes: str) -> Subscription[M]:
        """Listen; a hole that is left out matches anything. On return the subscription is known to the server."""

    async def serve(self, info: ServiceInfo, endpoints: list[Endpoint]) -> Withdraw:
        """Register as a micro service and answer `endpoints` until `close`. On return the server knows them.

        A second call with the same `info` adds endpoints. The function that is returned withdraws these endpoints: they
        take no more calls, and answer those in hand.
        """

    def watch_connection(self, on_change: Callable[[bool], None]) -> None:
        """Call `on_change(connected)` at every loss and return of the connection."""

    def bucket(self, name: str, seconds: float, most_bytes: int) -> KeyValue:
        """A store beside `kv`, which forgets what it was given after `seconds`, and refuses more than `most_bytes`."""

    async def flush(self) -> None:
        """Return once the server has processed all that was published before."""

    async def keep_events(self) -> None:
        """Have the server keep all events for a day, where it can. Raises BusError."""

    async def close(self) -> None:
        """Answer the calls in hand, then disconnect. Idempotent."""
