"""The processes beside a gateway that work on what its clients send."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from livescale.services.gateway.grammars import Grammars
from livescale.services.gateway.image_decoder import ImageDecoder
from livescale.services.gateway.templates import Templates
from livescale.shared.runtime.clock import Clock

STARTED_SECONDS = 1.0  # after which whoever started with this process leaves the processor to others


@dataclass(frozen=True)
class WorkProcesses:
    """They render templates, try grammars and decode images. Each is started when it is first needed."""

    templates: Templates
    grammars: Grammars
    images: ImageDecoder

    async def prepare(self) -> None:
        """Have the processes that render templates and try grammars ready before a client needs them."""
        await asyncio.sleep(STARTED_SECONDS)
        for work in (self.templates, self.grammars):  # the likeliest first
            await work.start()


@asynccontextmanager
async def open_work_processes(clock: Clock) -> AsyncIterator[WorkProcesses]:
    """Make the processes' objects; the processes run until this ends."""
    async with Templates(clock.wall) as templates, Grammars() as grammars, ImageDecoder() as images:
        yield WorkProcesses(templates, grammars, images)
