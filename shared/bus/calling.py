"""The asking end of a call: one table of pending answers, failed together when the connection breaks."""

import asyncio
from collections.abc import Callable, Mapping
from itertools import count

from livescale.shared.bus.codec import CONTENT_TYPE, MSGPACK, decode, encode, is_json
from livescale.shared.bus.contract import A, Call, CallTimeout, Context, Disconnected, Q, ServiceAbsent
from livescale.shared.bus.headers import STATUS, Headers, context_headers, read_refusal
from livescale.shared.runtime.clock import Clock

NO_RESPONDERS = "503"  # the server's status where nobody listens

Answer = tuple[bytes, Mapping[str, str]]
Send = Callable[[str, bytes, Headers, str], None]  # subject, data, headers, token

NO_CONTEXT = Context()


class Caller:
    """`send(subject, data, headers, token)` puts a request on its way; `answer(token, ...)` brings its reply."""

    def __init__(self, clock: Clock, send: Send) -> None:
        self._clock = clock
        self._send = send
        self._tokens = count(1)
        self._pending: dict[str, asyncio.Future[Answer | None]] = {}

    async def call(self, subject: str, call: Call[Q, A], message: Q, timeout: float, context: Context) -> A:
        """Raises what `Bus.call` raises."""
        seconds = timeout
        if context.deadline is not None:
            seconds = min(timeout, context.deadline - self._clock.wall())
        if seconds <= 0:
            raise CallTimeout(f"{subject}: the deadline has passed")
        headers = context_headers(context, seconds) | {CONTENT_TYPE: MSGPACK}
        data = encode(message)
        answer = await self.exchange(subject, lambda token: self._send(subject, data, headers, token), seconds)
        return _read(subject, call, *answer)

    async def exchange(self, whom: str, send: Callable[[str], None], timeout: float) -> Answer:
        """Send with a fresh token and wait for its answer. Raises CallTimeout, Disconnected, and what `send` raises."""
        token = str(next(self._tokens))
        future: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self._pending[token] = future
        try:
            send(token)
            async with asyncio.timeout(timeout):
                answer = await future
        except TimeoutError:
            raise CallTimeout(f"{whom} did not answer within {timeout:.3g} s") from None
        finally:
            del self._pending[token]
        if answer is None:
            raise Disconnected(f"the bus went away while {whom} was asked")
        return answer

    def answer(self, token: str, data: bytes, headers: Mapping[str, str]) -> None:
        """A late or second answer finds nobody, and is dropped."""
        future = self._pending.get(token)
        if future is not None and not future.done():
            future.set_result((data, headers))

    def fail_all(self) -> None:
        """The connection is gone: nobody waits out his timeout."""
        for future in self._pending.values():
            if not future.done():
                future.set_result(None)


def _read(subject: str, call: Call[Q, A], data: bytes, headers: Mapping[str, str]) -> A:
    if headers.get(STATUS) == NO_RESPONDERS and not data:
        raise ServiceAbsent(f"nobody listens on {subject}")
    refusal = read_refusal(headers)
    if refusal is not None:
        raise refusal
    reply: A = decode(call.reply, data, json=is_json(data, headers))
    return reply
