"""A whole system on one machine: `async with Stack(settings) as stack:` and everything serves inside."""

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from services.supervisor.checks import check_models, check_port, choose_dtype, make_spec
from services.supervisor.commands import stack_commands
from services.supervisor.processes import Child, Echo, Supervisor
from services.supervisor.settings import StackSettings
from shared.bus.contract import Bus, BusError, Refusal
from shared.bus.nats import NatsBus
from shared.bus.server import nats_server
from shared.messages.membership import AskSnapshot, Register, Snapshot
from shared.messages.parameters import ModelSpec
from shared.subjects import REGISTER, SNAPSHOT

POLL_SECONDS = 0.1
CALL_SECONDS = 5.0

Progress = Callable[[str], None]


class StackFailed(Exception):
    """The system did not come up; says what was missing and what the processes last said."""


class Stack:
    """The bus, the services and the models. `url`, `nats_url`, `bus` and `supervisor` are set inside `async with`.

    Raises BadSettings before anything was started, ChildFailed and StackFailed while starting.
    """

    url: str
    nats_url: str
    bus: Bus
    supervisor: Supervisor

    def __init__(self, settings: StackSettings, *, progress: Progress, echo: Echo) -> None:
        self._settings = settings
        self._progress = progress
        self._echo = echo
        self._cleanup = AsyncExitStack()

    async def __aenter__(self) -> Self:
        check_models(self._settings)
        check_port(self._settings.host, self._settings.port)
        async with AsyncExitStack() as cleanup:
            run_dir = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="livescale-")))
            await self._start(cleanup, run_dir / "gateway.json")
            self._cleanup = cleanup.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Streams end before those who feed them.
        if "gateway-0" in self.supervisor.children:
            await self.supervisor.stop("gateway-0")
        await self._cleanup.aclose()
