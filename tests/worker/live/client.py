"""A client, with the gateway and the router between it and the workers, as far as a worker notices them."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.requests import (
    Admit,
    Cancel,
    Replay,
    RequestLost,
    RequestsEnded,
    Submit,
    TokenFrame,
    TokenLogprobs,
    Tokens,
)
from livescale.shared.subjects import ADMIT, CANCEL_WORK, REPLAY

RETRY_SECONDS = 0.1


@dataclass
class Wish:
    """What was asked for, and what came. `request` is its last submission: as it is lost it is submitted again."""

    request: Submit
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    submissions: int = 0
    cancelled: bool = False
    decode: str | None = None  # the worker that is to decode it

    @property
    def is_over(self) -> bool:
        return bool(self.ends)

    def take(self, row: Tokens) -> None:
        known = len(self.tokens) - row.index
        self.tokens += row.token_ids[known:]
        self.logprobs += row.logprobs[known:]
        self.prompt_logprobs = row.prompt_logprobs or self.prompt_logprobs
        if row.finish_reason is not None:
            self.ends.append(row.finish_reason)

    def again(self) -> None:
        """Under another id, with the tokens so far."""
        self.submissions += 1
        id = f"{self.request.request_id.split('~')[0]}~{self.submissions}"
        self.request = replace(self.request, request_id=id, generated=list(self.tokens))

    def check(self, expected: list[int], logprobs: list[TokenLogprobs]) -> None:
        """It ended once, with all the tokens it should have and what is told of them, or with the first of them as its
        client left, or its deadline came."""
        assert len(self.ends) == 1, (self.request.request_id, self.ends)
        assert self.ends[0] in ("length", "deadline") or self.cancelled, self.ends
        assert self.tokens == expected[: None if self.ends == ["length"] else len(self.tokens)]
        assert self.logprobs == logprobs[: len(self.tokens)]


class Client:
    """`living` names the workers that may be asked; `act` starts what goes on meanwhile."""

    def __init__(
        self, bus: Bus, living: Callable[[], Collection[str]], act: Callable[[Coroutine[None, None, None]], None]
    ) -> None:
        self.wishes: list[Wish] = []
        self.moves: list[RequestsMoved] = []
        self.places: dict[str, str] = {}  # where a router would think that requests are
        self._bus = bus
        self._living = living
        self._act = act
        self._current: dict[str, Wish] = {}

    async def submit(self, request: Submit, worker: str, decode: str | None = None) -> None:
        """Ask for it at this worker, or, where it does not take it, at any."""
        wish = Wish(request, decode=decode)
        self.wishes.append(wish)
        await self._place(wish, worker)

    def cancel(self, wish: Wish) -> None:
        """The client leaves."""
        wish.cancelled = True
        self._stop(wish.request.request_id)

    def heard(self, message: object) -> None:
        match message:
            case TokenFrame():
                for row in message.rows:
                    self._row(row, message.worker)
            case RequestLost():
                self.lost(message.request_id)
            case RequestsEnded():  # even if no one heard that it moved to
                for id in message.request_ids:
                    self.places.pop(id, None)
            case RequestsMoved():
                self.moves.append(message)
                for id in message.request_ids:
                    self._moved(id, message)

    def lost_at(self, worker: str) -> None:
        """The worker is gone, and the client asks again."""
        for id in [id for id, place in self.places.items() if place == worker]:
            self.lost(id)

    def lost(self, request_id: str) -> None:
        self.places.pop(request_id, None)
        wish = self._current.pop(request_id, None)
        if wish is not None and not wish.is_over:
            wish.again()
            self._act(self._place(wish))

    async def ask_again(self) -> None:
        """Ask again for what was said while the client did not hear it."""
        for wish in self.wishes:
            for worker in () if wish.is_over else sorted(self._living()):
                await self._replay(wish, worker)

    async def _replay(self, wish: Wish, worker: str) -> None:
        command = Replay(request_id=wish.request.request_id, gateway=wish.request.gateway, index=len(wish.tokens))
        with suppress(BusError):
            await self._bus.call(REPLAY, command, timeout=1, id=worker)

    async def _place(self, wish: Wish, first: str = "") -> None:
        while not wish.is_over:
            if wish.cancelled:
                wish.ends.append("cancelled")
                return
            for worker in sorted(self._living(), key=lambda id: (id != first, id)):
                if await self._admitted(wish, worker):
                    return
            await asyncio.sleep(RETRY_SECONDS)

    async def _admitted(self, wish: Wish, worker: str) -> bool:
        request = wish.request
        self._current[request.request_id] = wish
        self.places[request.request_id] = worker
        with suppress(BusError):
            await self._bus.call(ADMIT, Admit(request=request, decode=wish.decode), timeout=1, id=worker)
            if wish.cancelled:
                self._stop(request.request_id)
            return True
        self.places.pop(request.request_id, None)
        return False

    def _stop(self, request_id: str) -> None:
        if request_id in self.places:
            self._bus.publish(CANCEL_WORK, Cancel(request_id=request_id), id=self.places[request_id])

    def _row(self, row: Tokens, worker: str) -> None:
        wish = self._current.get(row.request_id)
        if wish is not None and not wish.is_over:
            if row.index <= len(wish.tokens):
                wish.take(row)
            else:
                self._act(self._replay(wish, worker))
        elif row.finish_reason is None:
            self._bus.publish(CANCEL_WORK, Cancel(request_id=row.request_id), id=worker)

    def _moved(self, id: str, moved: RequestsMoved) -> None:
        if self.places.get(id) != moved.previous:
            return
        self.places[id] = moved.worker
        if moved.worker not in self._living():
            self.lost(id)
        elif id not in self._current or self._current[id].cancelled:
            self._stop(id)
