"""A gateway without HTTP: real streams and generations, and the clients in front of them."""

import asyncio
from dataclasses import dataclass, field

from livescale.load.simulate.client import HeadlessGateway, TokensOnly
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.generation import Generation
from livescale.services.gateway.output import TextPiece
from livescale.shared.bus.contract import Context, ServiceInfo
from livescale.shared.messages.requests import Submit
from livescale.shared.process.run import World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import CountedIds
from livescale.shared.simulation.local_bus import LocalBus
from tests.control.fakes import CLOCK

PATIENCE_SECONDS = 600.0


@dataclass
class Ask:
    """A client's request and what it got. `outcome` is None until the end."""

    number: int
    max_tokens: int
    model: str = "m"
    seconds: float = PATIENCE_SECONDS
    tokens: list[int] = field(default_factory=list)
    refusals: int = 0
    outcome: str | None = None
    leaves: bool = False


class AskingGateway(HeadlessGateway):
    """A gateway without HTTP, and the clients in front of it."""

    def __init__(self, bus: LocalBus, id: str) -> None:
        info = ServiceInfo("gateway", id, "a gateway without HTTP")
        super().__init__(World(info, "box-a", bus, CLOCK, CountedIds(), Telemetry("gateway", id)))
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.generations: dict[int, Generation] = {}

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            for task in self.tasks.values():
                task.cancel()
            await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    def ask(self, ask: Ask) -> None:
        self.tasks[ask.number] = asyncio.create_task(self.serve(ask), name=f"ask {ask.number}")

    def leave(self, ask: Ask) -> None:
        if ask.number in self.tasks and ask.outcome is None:
            ask.leaves = True
            self.tasks[ask.number].cancel()

    async def serve(self, ask: Ask) -> None:
        try:
            while ask.outcome is None:
                await self.attempt(ask)
        except asyncio.CancelledError:
            ask.outcome = "left" if ask.leaves else "broken"

    async def attempt(self, ask: Ask) -> None:
        """Send a request as the API allows: again if it was refused with a time and no token had come."""

        async def emit(piece: TextPiece) -> None:
            ask.tokens += piece.token_ids

        deadline = CLOCK.wall() + ask.seconds
        submit = Submit(
            request_id=f"{self.id}-{ask.number}-{ask.refusals}",
            model=ask.model,
            gateway=self.id,
            prompt=[1] * 20,
            max_tokens=ask.max_tokens,
            deadline=deadline,
        )
        generation = self.generations[ask.number] = Generation(self.backend, submit, TokensOnly(), Context())
        try:
            await generation.run(emit)
        except ApiError as error:
            if error.status == 504 and CLOCK.wall() > deadline - 0.01:
                ask.outcome = "late"
                return
            if ask.tokens or error.status not in (429, 503) or error.retry_after_ms is None:
                ask.outcome = f"error {error.status} {error}"
                return
            ask.refusals += 1
            await asyncio.sleep(error.retry_after_ms / 1000)
        else:
            ask.outcome = "complete"
        finally:
            del self.generations[ask.number]
