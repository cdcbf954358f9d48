"""An engine and links that take virtual time, and fail where somebody is gone."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from services.worker.engine.runner import EngineRunner
from shared.links.contract import Buffer, LinkError, Peer
from tests.transfer.virtual_link import Mail, VirtualLink, VirtualPeer

STEP_SECONDS = 0.01  # of a layer as of a step
MESSAGE_SECONDS = 0.003
T = TypeVar("T")


class TimedRunner(EngineRunner):
    """Whatever the engine does takes as long."""

    async def call(self, job: Callable[[], T]) -> T:
        result = await super().call(job)
        await asyncio.sleep(STEP_SECONDS)
        return result


class TimedPeer(VirtualPeer):
    """What is sent arrives a moment later."""

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        await asyncio.sleep(MESSAGE_SECONDS)
        await super().send(tag, buffer, timeout=timeout)


class TimedLink(VirtualLink):
    """Of those who are `gone` nobody can be connected to."""

    def __init__(self, mail: Mail, address: bytes, gone: set[bytes]) -> None:
        super().__init__(mail, address)
        self._gone = gone

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> Peer:
        if address in self._gone:
            raise LinkError("connect: nobody is there")
        return TimedPeer(self._mail, self.address, address, channel)
