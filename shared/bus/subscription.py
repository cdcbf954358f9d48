"""The listener's end of a topic: a bounded queue of decoded messages. Both buses use it."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, NamedTuple

from livescale.shared.bus.codec import Carried, Undecodable, decode, holes_of
from livescale.shared.bus.contract import M, Received, Topic
from livescale.shared.runtime.rate_limited_log import RateLimitedLog

LONGEST_NAMED = 64
LIMIT_BYTES = 32 << 20  # of what waits to be read: many small messages, or a few of the largest


class _AtOnce(NamedTuple, Generic[M]):
    """How a reader takes a message as it arrives: whether nothing comes before that, and what ends it."""

    is_next: Callable[[], bool]
    take: Callable[[Received[M]], None]
    over: asyncio.Future[None]


class QueuedSubscription(Generic[M]):
    """Filled by `deliver`, read by `async for` or `each`. What does not fit is dropped and counted."""

    def __init__(self, topic: Topic[M], limit: int, counts: Counter[str], log: RateLimitedLog) -> None:
        self.dropped = 0
        self._topic = topic
        self._queue: deque[tuple[Received[M], int] | None] = deque()
        self._readers: deque[asyncio.Future[None]] = deque()
        self._limit = limit
        self._size_bytes = 0
        self._counts = counts
        self._log = log
        self._closed = False
        self._leave: Callable[[], Awaitable[None]] | None = None
        self._take_soon: Callable[[], object] | None = None  # of a reader that uses `each`
        self._is_taken_soon = False
        self._at_once: _AtOnce[M] | None = None  # the same reader, in virtual time

    def on_close(self, leave: Callable[[], Awaitable[None]]) -> None:
        self._leave = leave

    def deliver(self, subject: str, data: bytes, *_: object) -> None:
        """Decode a message and queue it. Never raises, as the connection's read loop calls it."""
        if self._closed:
            return
        if isinstance(data, Carried) and data.topic is self._topic:
            received: Received[M] = data.received
        else:
            try:
                received = _received(self._topic, subject, decode(self._topic.type, data, json=self._topic.json))
            except Undecodable as error:
                self._counts["undecodable"] += 1
                self._log.warning("message_undecodable", subject, error=str(error))
                return
        reader = self._at_once
        if reader is not None and not self._queue and reader.is_next():
            try:
                reader.take(received)
            except Exception as error:
                if reader.over.done():  # what was taken had the reader cancelled: it hears of nothing more
                    raise
                reader.over.set_exception(error)
            return
        if len(self._queue) >= self._limit or self._size_bytes + len(data) > LIMIT_BYTES:
            self.dropped += 1
            self._counts["dropped_slow_reader"] += 1
            self._log.warning("reader_too_slow", subject, limit=self._limit)
            return
        self._size_bytes += len(data)
        self._queue.append((received, len(data)))
        self._wake_reader()

    def end(self) -> None:
        """End the subscription: readers get what is queued, and then stop."""
        if not self._closed:
            self._closed = True
            self._queue.append(None)
            self._wake_reader()

    def __aiter__(self) -> AsyncIterator[Received[M]]:
        return self

    async def __anext__(self) -> Received[M]:
        while not self._queue:
            reader = asyncio.get_running_loop().create_future()
            self._readers.append(reader)
            try:
                await reader
            except asyncio.CancelledError:
                self._gives_up(reader)
                raise
        entry = self._queue.popleft()
        if entry is None:
            self._queue.append(None)  # for other readers
            self._wake_reader()
            raise StopAsyncIteration
        received, size_bytes = entry
        self._size_bytes -= size_bytes
        return received

    async def each(self, take: Callable[[Received[M]], None]) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        over: asyncio.Future[None] = loop.create_future()
        context, take_all = copy_context(), partial(self._take_all, take, over, task)
        # The turn in which a task that reads would be woken.
        self._take_soon = partial(loop.call_soon, take_all, context=context)
        if (is_next := getattr(loop, "is_next", None)) is not None:
            # Virtual time leaves out a turn before which nothing happens: then the task is not cancelled either.
            run: Callable[..., None] = context.run
            self._at_once = _AtOnce(partial(is_next, context), partial(run, take), over)
        take_all()
        try:
            await over
        finally:
            self._take_soon = self._at_once = None

    def _take_all(
        self, take: Callable[[Received[M]], None], over: asyncio.Future[None], task: asyncio.Task[Any]
    ) -> None:
        """Take all that is queued. A task that was cancelled meanwhile reads no more."""
        self._is_taken_soon = False
        if over.done() or task.cancelling():
            return
        queue = self._queue
        try:
            while queue:
                entry = queue.popleft()
                if entry is None:
                    queue.append(None)  # for other readers
                    if not over.done():
                        over.set_result(None)
                    return
                received, size_bytes = entry
                self._size_bytes -= size_bytes
                take(received)
        except Exception as error:
            if over.done():  # as above
                raise
            over.set_exception(error)

    def _gives_up(self, reader: asyncio.Future[None]) -> None:
        """Forget a reader. One that was woken wakes the next one."""
        if reader in self._readers:
            self._readers.remove(reader)
        elif self._queue and not reader.cancelled():
            self._wake_reader()

    def _wake_reader(self) -> None:
        if self._take_soon is not None:
            if not self._is_taken_soon:
                self._is_taken_soon = True
                self._take_soon()
            return
        while self._readers:
            reader = self._readers.popleft()
            if not reader.done():
                reader.set_result(None)
                return

    async def close(self) -> None:
        if not self._closed:
            self.end()
            if self._leave is not None:
                await self._leave()


def carried(topic: Topic[M], subject: str, data: bytes, message: M) -> bytes:
    """`data` with its `message`, so that readers of the topic need not decode it. One that they would refuse is left to
    them."""
    try:
        return Carried.of(data, topic, _received(topic, subject, message))
    except Undecodable:
        return data


def _received(topic: Topic[M], subject: str, message: M) -> Received[M]:
    holes = holes_of(topic.pattern, subject)
    _check_sender(message, holes)
    return Received(message, holes)


def _check_sender(message: object, holes: Mapping[str, str]) -> None:
    """Check that a message names its sender as its subject does: the server checks subjects alone.

    Raises Undecodable.
    """
    for name, value in holes.items():
        if getattr(message, name, value) != value:
            raise Undecodable(f"{name} is {str(getattr(message, name))[:LONGEST_NAMED]!r}, its subject says {value!r}")
