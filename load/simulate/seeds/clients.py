"""The clients of a random system: they wait, lose patience, leave, and ask again where they were told to."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from livescale.load.simulate.client import find_adapter, send, submit_of
from livescale.load.simulate.cluster import VirtualCluster
from livescale.load.simulate.seeds.asks import SeedAsk
from livescale.load.simulate.seeds.history import AGAIN, AskOutcome, Told, is_gateway
from livescale.services.gateway.output import TextPiece

LOOK_SECONDS = 0.1
AGAIN_SECONDS = 0.5  # after which a client asks again for an adapter that is not known yet


class Clients:
    """One client for each ask. `answers` fills as requests end."""

    def __init__(self, cluster: VirtualCluster, asks: Sequence[SeedAsk]) -> None:
        self.answers: list[AskOutcome] = []
        self._cluster = cluster
        self._asks = asks
        self._attempts: dict[asyncio.Task[AskOutcome | float], str] = {}  # and the gateway that each asks

    @property
    def are_done(self) -> bool:
        """Whether every request has ended, in whatever way."""
        return len(self.answers) == len(self._asks)

    @property
    def are_complete(self) -> bool:
        """Whether every request has ended with all of its tokens."""
        return self.are_done and all(answer.end == "complete" for answer in self.answers)

    def missing(self) -> list[str]:
        """The requests that have not ended, one line each."""
        ended = {answer.number for answer in self.answers}
        return [f"request {number} has not ended" for number in range(len(self._asks)) if number not in ended]

    async def run(self) -> None:
        """Send everything when it is due; returns when all have ended."""
        async with asyncio.TaskGroup() as group:
            for number, ask in enumerate(self._asks):
                group.create_task(self._serve(number, ask))

    def break_connections(self, to: str) -> None:
        """Break every connection to this process, as it is gone."""
        for attempt in [one for one, gateway in self._attempts.items() if gateway == to]:
            attempt.cancel()

    async def _serve(self, number: int, ask: SeedAsk) -> None:
        await asyncio.sleep(ask.ask.at)
        try:
            async with asyncio.timeout(ask.leaves):
                self.answers.append(await self._persist(number, ask))
        except TimeoutError:
            self.answers.append(AskOutcome(number, "left"))

    async def _persist(self, number: int, ask: SeedAsk) -> AskOutcome:
        """Ask until there is an answer; a client that is refused before its first token asks again when it is told."""
        loop = asyncio.get_running_loop()
        until, index = loop.time() + ask.patience, ask.ask.index
        while True:
            gateway = await self._choose_gateway(index)
            work = self._attempt(number, ask, gateway, index, until - loop.time())
            attempt: asyncio.Task[AskOutcome | float] = asyncio.create_task(work)
            self._attempts[attempt] = gateway
            try:
                await asyncio.wait([attempt])
            finally:
                del self._attempts[attempt]
                attempt.cancel()
            if attempt.cancelled():
                return AskOutcome(number, "broken")
            result = attempt.result()
            if isinstance(result, AskOutcome):
                return result
            index += AGAIN
            await asyncio.sleep(result)

    async def _choose_gateway(self, index: int) -> str:
        """A gateway that runs, once there is one: who is sent again is sent to the next."""
        gateways = [id for id in self._cluster.ids if is_gateway(id)]
        # Nobody tells when one is there again.
        while not (running := [id for id in gateways if id in self._cluster.processes]):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        return running[(index + index // AGAIN) % len(running)]

    async def _attempt(self, number: int, ask: SeedAsk, at: str, index: int, seconds: float) -> AskOutcome | float:
        """The answer, or after how many seconds to ask again."""
        sent, gateway, pieces = replace(ask.ask, index=index), self._cluster.find_gateway(at), list[TextPiece]()
        adapter = None if ask.adapter is None else await find_adapter(gateway.backend.bus, ask.adapter)
        if ask.adapter is not None and adapter is None:
            return AskOutcome(number, "late") if seconds < 0 else AGAIN_SECONDS
        submit = replace(submit_of(gateway, ask.model, sent, max(seconds, 0.0)), adapter=adapter)
        record = await send(gateway, sent, ask.wishes.of(submit), pieces.append)
        version = None if adapter is None else adapter.version
        if record.error is None:
            return AskOutcome(number, "complete", record, told=told_in(pieces), adapter=version)
        if record.status == 504:
            return AskOutcome(number, "late", record, record.error, adapter=version)
        if record.retry_after is not None and record.status in (429, 503) and not record.token_ids:
            return record.retry_after
        return AskOutcome(number, "refused", record, f"{record.status} {record.error}", adapter=version)


def told_in(pieces: Sequence[TextPiece]) -> Told:
    """How likely the tokens of an answer and of its prompt are, as the pieces of the answer tell."""
    made = tuple(one for piece in pieces for one in piece.logprobs if one is not None)
    return Told(made, tuple(one for piece in pieces for one in piece.prompt_logprobs))
