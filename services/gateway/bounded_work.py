"""Work on what clients send, in a process beside the gateway whose time and memory are bounded."""

import asyncio
from types import TracebackType
from typing import Self

from livescale.shared.process.bounded_process import BoundedProcess


class BoundedWork:
    """One kind of work, one piece after the other: the task that has the `_turn` may ask the `_process`. `_overran`
    says that a piece took too much.

    The process runs a module of the gateway. It is started when it is first needed, and again whenever it died.
    """

    def __init__(self, module: str, processor_seconds: float, memory_bytes: int, largest_answer: int) -> None:
        self._process = BoundedProcess(
            f"livescale.services.gateway.{module}", str(processor_seconds), largest_answer=largest_answer
        )
        self._turn = asyncio.Lock()
        self._overran = (
            f"it took more than {processor_seconds:g} s of the processor's time, or {memory_bytes >> 20} MiB"
        )

    async def __aenter__(self) -> Self:
        return self

    async def start(self) -> None:
        """Start the process, so that the first piece of work does not wait for that."""
        async with self._turn:
            await self._process.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._process.end()
