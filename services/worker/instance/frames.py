"""What a worker sends of its requests: tokens to gateways, and to routers which requests have ended or moved.

A frame wakes the bus's server, a gateway and a client. Where steps are shorter than that takes, these would take the
processor from them for each token, though nobody can tell tokens apart that are made within three milliseconds. So
tokens of short steps leave together.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from livescale.services.worker.scheduling.batch import TokenOutput
from livescale.services.worker.scheduling.sequence import CARRIED_LOGPROBS
from livescale.shared.bus.contract import Bus
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.requests import (
    Replay,
    RequestLost,
    RequestsEnded,
    Running,
    Submit,
    TokenFrame,
    TokenLogprobs,
    Tokens,
)
from livescale.shared.runtime.clock import Clock
from livescale.shared.subjects import ENDED, MOVED, TOKENS

# The time between two frames to a gateway. First and last tokens, and all that is large, do not wait.
FRAME_SECONDS = 0.003


class WaitingRows:
    """Rows of tokens that have not left yet, by gateway, in the order in which they were made."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Tokens]] = {}
        self._urgent: set[str] = set()  # gateways that one of the rows is for which must not wait
        self._left: dict[str, float] = {}  # by gateway, when the last frame left, if it was a moment ago

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def add(self, gateway: str, row: Tokens) -> None:
        """Have a row leave with the next frame to its gateway."""
        self._rows.setdefault(gateway, []).append(row)
        if _is_urgent(row):
            self._urgent.add(gateway)

    def take_due(self, now: float) -> Iterator[tuple[str, list[Tokens]]]:
        """The rows that have to leave now, by gateway. They wait no longer."""
        self._left = {gateway: at for gateway, at in self._left.items() if now - at < FRAME_SECONDS}
        for gateway in list(self._rows):
            if gateway in self._urgent or gateway not in self._left:
                yield gateway, self._take(gateway, now)

    def take_all(self, now: float) -> Iterator[tuple[str, list[Tokens]]]:
        """All rows, by gateway. They wait no longer."""
        for gateway in list(self._rows):
            yield gateway, self._take(gateway, now)

    def _take(self, gateway: str, now: float) -> list[Tokens]:
        self._left[gateway] = now
        self._urgent.discard(gateway)
        return self._rows.pop(gateway)


def is_large(row: Tokens) -> bool:
    """Whether a row may be half of what the bus takes at once: what is told of a prompt, or made of it."""
    return bool(row.prompt_logprobs or (row.logprobs and any(told.pooled for told in row.logprobs)))


def _is_urgent(row: Tokens) -> bool:
    return row.index == 0 or not row.token_ids or bool(row.logprobs) or row.finish_reason is not None


def earlier_tokens(request: Submit) -> Tokens:
    """The tokens that other workers sent for this request and that may be asked for here: all of them, or those whose
    log-probabilities came along."""
    index = 0 if request.sampling.logprobs is None else len(request.generated) - len(request.logprobs)
    asked = request.prompt_logprobs
    return Tokens(
        request_id=request.request_id,
        index=index,
        token_ids=request.generated[index:],
        logprobs=request.logprobs,
        prompt_logprobs=[] if asked is None or index or not request.generated else asked.told,
    )


@dataclass
class SentTokens:
    """All tokens of a request from `index` on, their log-probabilities where there are any, and the row that brought
    the last of them. Log-probabilities are large: where there are any, only the last tokens are kept. `version` of the
    model made them."""

    index: int
    last: Tokens
    version: str | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def add(self, row: Tokens) -> None:
        """Append the tokens of a row that was sent."""
        self.token_ids += row.token_ids
        self.logprobs += row.logprobs
        self.prompt_logprobs += row.prompt_logprobs
        self.last = row
        if len(self.logprobs) >= 2 * CARRIED_LOGPROBS:
            self.index += len(self.token_ids) - CARRIED_LOGPROBS
            del self.token_ids[:-CARRIED_LOGPROBS], self.logprobs[:-CARRIED_LOGPROBS]
            self.prompt_logprobs.clear()


class TokenHistory:
    """The tokens sent for running requests, and for the last `kept` requests that ended.

    A gateway that lost a frame can ask for them again.
    """

    def __init__(self, kept: int = 512) -> None:
        self._kept = kept
        self._running: dict[str, SentTokens] = {}
        self._ended: OrderedDict[str, SentTokens] = OrderedDict()

    def record(self, row: Tokens, version: str | None = None) -> None:
        """Append a row that was sent, which this version made; its finish reason ends the request."""
        said = self._running.get(row.request_id)
        if said is None:
            said = self._running[row.request_id] = SentTokens(row.index, row, version)
        said.add(row)
        if row.finish_reason is None:
            return
        self._ended[row.request_id] = self._running.pop(row.request_id)
        if len(self._ended) > self._kept:
            self._ended.popitem(last=False)

    def forget(self, request_id: str) -> None:
        """Drop a request that goes on at another worker."""
        self._running.pop(request_id, None)

    def drop_running(self) -> None:
        """Drop all running requests: this worker no longer has them."""
        self._running.clear()

    def ended(self) -> list[str]:
        """The requests that have ended, as far back as they are kept."""
        return [id for id in self._ended if id not in self._running]

    def version_of(self, request_id: str) -> str | None:
        """The version of the model that made a request's tokens, where they are known here."""
        said = self._said(request_id)
        return None if said is None else said.version

    def since(self, request_id: str, index: int) -> Tokens | None:
        """One row with all tokens from generated token `index` on; None where they are not known here."""
        said = self._said(request_id)
        if said is None or index < said.index:
            return None
        first = index - said.index
        return replace(
            said.last,
            index=index,
            token_ids=said.token_ids[first:],
            logprobs=said.logprobs[first:],
            prompt_logprobs=said.prompt_logprobs if index == 0 else [],
        )

    def _said(self, request_id: str) -> SentTokens | None:
        return self._running.get(request_id) or self._ended.get(request_id)


class TokenFrames:
    """Frames of tokens, counted, and a history of them for gateways that lost one. `version` is that of the model that
    made them."""

    def __init__(self, worker: str, bus: Bus, clock: Clock) -> None:
        self._worker = worker
        self._bus = bus
        self._clock = clock
        self._waiting = WaitingRows()
        self._timer: asyncio.TimerHandle | None = None  # while tokens wait
        self._steps = 0
        self.history = TokenHistory()
        self.version: str | None = None
        bus.watch_connection(self._connection_changed)

    def send_all(self, outputs: Iterable[TokenOutput]) -> list[Tokens]:
        """Send a step's tokens, in one frame for each gateway. Returns their rows.

        Tokens that may wait leave with those of the next steps, where these are short.
        """
        rows = []
        for output in outputs:
            self._waiting.add(output.gateway, output.row)
            rows.append(output.row)
        self._send_rows(self._waiting.take_due(self._clock.now()))
        for row in rows:
            self.history.record(row, self.version)
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FRAME_SECONDS, self._on_time)
        return rows

    def send_waiting(self) -> None:
        """Send all tokens that wait, as something is going to be said of their requests."""
        self._send_rows(self._waiting.take_all(self._clock.now()))

    def _on_time(self) -> None:
        self._timer = None
        self.send_waiting()

    def _send_rows(self, of_gateways: Iterable[tuple[str, list[Tokens]]]) -> None:
        for gateway, rows in of_gateways:
            large = [row for row in rows if is_large(row)]
            together = [row for row in rows if not is_large(row)] if large else rows
            if together:
                self._send(gateway, together, self.version)
            for row in large:
                self._send(gateway, [row], self.version)

    def send_again(self, command: Replay) -> bool:
        """Send a request's tokens from an index on once more. Returns whether they are known here.

        The worker may serve another version by now.
        """
        row = self.history.since(command.request_id, command.index)
        if row is not None:
            self._send(command.gateway, [row], self.history.version_of(command.request_id))
        return row is not None

    def tell_here(self, request: Submit) -> None:
        """Tell its gateway that a request of another worker has come here. A token of that one that the gateway missed
        may be asked for here."""
        self.send_waiting()
        self.history.record(earlier_tokens(request), self.version)
        row = Tokens(request_id=request.request_id, index=len(request.generated), token_ids=[])
        self._send(request.gateway, [row], self.version)

    def _send(self, gateway: str, rows: list[Tokens], version: str | None) -> None:
        """Send what a step of this version made for one gateway, as one frame."""
        self._steps += 1
        frame = TokenFrame(worker=self._worker, step=self._steps, rows=rows, version=version)
        self._bus.publish(TOKENS, frame, gateway=gateway)

    def tell_lost(self, requests: Sequence[Running | Submit], reason: str) -> None:
        """Tell gateways that these requests do not go on here; they may submit them again."""
        self.send_waiting()
        for one in requests:
            lost = RequestLost(request_id=one.request_id, reason=reason)
            self._bus.publish(TOKENS, lost, gateway=one.gateway)
        if requests:
            self.tell_ended([one.request_id for one in requests])

    def tell_ended(self, request_ids: list[str], tokens: Sequence[int] = ()) -> None:
        """Say that these requests have left the worker, and how many tokens they have where that is known."""
        ended = RequestsEnded(worker=self._worker, request_ids=request_ids, tokens=list(tokens))
        self._bus.publish(ENDED, ended, worker=self._worker)

    def tell_moved(self, request_id: str, worker: str, layers: int = 0) -> None:
        """Tell routers which worker has a request now that was here; it may be this one still."""
        self.send_waiting()
        moved = RequestsMoved(worker=worker, previous=self._worker, request_ids=[request_id], layers=layers)
        self._bus.publish(MOVED, moved, previous=self._worker)

    def _connection_changed(self, connected: bool) -> None:
        """Repeat what has ended after the bus was away: a router that is not told of an end counts it for ever."""
        ended = self.history.ended() if connected else []
        if ended:
            self.tell_ended(ended)
