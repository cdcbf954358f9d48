"""What a worker sends of its requests: tokens to gateways, and to routers which requests have ended."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from livescale.services.worker.scheduling.outputs import TokenOutput
from livescale.shared.bus.contract import Bus
from livescale.shared.messages.requests import RequestsEnded, TokenFrame, Tokens
from livescale.shared.subjects import ENDED, TOKENS


class TokenFrames:
    """Frames of tokens, counted; `version` is that of the model that made them."""

    def __init__(self, worker: str, bus: Bus) -> None:
        self._worker = worker
        self._bus = bus
        self._steps = 0
        self.version: str | None = None

    def send_all(self, outputs: Iterable[TokenOutput]) -> list[Tokens]:
        """Send a step's tokens, in one frame for each gateway. Returns what was sent."""
        rows: dict[tuple[str, str], list[Tokens]] = defaultdict(list)
        for output in outputs:
            rows[output.gateway, output.row.request_id if _is_large(output.row) else ""].append(output.row)
        for (gateway, _), theirs in rows.items():
            self.send(gateway, theirs)
        return [row for theirs in rows.values() for row in theirs]

    def send(self, gateway: str, rows: list[Tokens]) -> None:
        """Send what a step made for one gateway, as one frame."""
        self._steps += 1
        frame = TokenFrame(worker=self._worker, step=self._steps, rows=rows, version=self.version)
        self._bus.publish(TOKENS, frame, gateway=gateway)

    def tell_ended(self, request_ids: list[str], tokens: Sequence[int] = ()) -> None:
        """Say that these requests have left the worker, and how many tokens they have where that is known."""
        ended = RequestsEnded(worker=self._worker, request_ids=request_ids, tokens=list(tokens))
        self._bus.publish(ENDED, ended, worker=self._worker)


def _is_large(row: Tokens) -> bool:
    """Whether a row may be half of what the bus takes at once: what is told of a prompt, or made of it."""
    return bool(row.prompt_logprobs) or any(told.pooled for told in row.logprobs)
