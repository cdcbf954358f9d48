"""The key-value store's thin shell over nats-py, with a server that answers when it is told."""

import asyncio
from typing import Any

import pytest

from livescale.shared.bus.jetstream import NatsKeyValue
from livescale.shared.messages.membership import Joined


class Server:
    """A client, its stream and its bucket in one; `answer` is awaited as nats-py does."""

    is_connected = True

    def __init__(self) -> None:
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def jetstream(self, timeout: float) -> "Server":
        return self

    async def create_key_value(self, **settings: Any) -> "Server":
        return self

    async def put(self, key: str, value: bytes) -> int:
        return await asyncio.wait_for(self.answer, 60)


async def test_a_writer_that_is_told_to_end_just_when_its_answer_comes_ends() -> None:
    server = Server()
    store = NatsKeyValue(server, "state")  # type: ignore[arg-type]

    async def write_for_ever() -> None:
        while True:
            await store.put("a", Joined(epoch=1))
            await asyncio.sleep(60)  # it is cancelled before

    writing = asyncio.create_task(write_for_ever())
    await asyncio.sleep(0)
    server.answer.set_result(1)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(60):
            await writing
    assert writing.cancelled()
