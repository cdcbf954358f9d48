"""What workers of a pipeline get or compute while it still runs, so that it can end with no pause (LambdaScale 4.4).

Each request is to be one worker's. All of its blocks are in the KV cache there, with the layers that are run there: the
other layers' part of them is free, and so it takes no more room. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass

from livescale.services.worker.scheduling.batch import PREFILL_CHUNK, ScheduledChunk
from livescale.services.worker.scheduling.sequence import NOTHING, Filled, Sequence
from livescale.shared.runtime.settings import SwitchKv


@dataclass(frozen=True)
class KvWay:
    """Whether KV is moved or computed again, and the reason."""

    moves: bool
    reason: str


def choose_way(asked: SwitchKv, token_bytes: int, link_rate: float | None, prefill_rate: float | None) -> KvWay:
    """Decide whether KV is moved or computed again, by what is faster (LambdaScale 4.4).

    A token's KV is `token_bytes` in the layers that others run. Rates are measured, in bytes and in tokens a second.
    What was not measured yet is not counted on.
    """
    if asked != "auto":
        return KvWay(asked == "move", f"{asked} is set")
    if link_rate is None or prefill_rate is None:
        what = "links are" if link_rate is None else "prefill is"
        return KvWay(False, f"it is not known yet how fast {what}")
    move, compute = token_bytes / link_rate, 1 / prefill_rate
    return KvWay(
        move < compute, f"a token takes {1e6 * move:.0f} us to be moved, {1e6 * compute:.0f} us to be computed"
    )


# The number of rows that go with a step. Workers take turns, those with later stages first, so that consecutive steps
# compute their rows at the same time. A token is delayed by no more than these rows.
FILL_ROWS = PREFILL_CHUNK


def share_out(requests: Iterable[str], workers: List[str], before: Mapping[str, str]) -> dict[str, str]:
    """Return the worker that each request is to belong to: as in `before`, else the worker with the fewest, the earlier
    of two."""
    shares = {id: before[id] for id in requests if id in before}
    counts = {worker: list(shares.values()).count(worker) for worker in workers}
    for id in requests:
        if id not in shares:
            shares[id] = min(workers, key=lambda worker: (counts[worker], workers.index(worker)))
            counts[shares[id]] += 1
    return shares


class Filling:
    """What `workers`, in the order of their stages, have, get and compute of the requests that will be theirs.

    `shares` names the future worker of each request, by its id. KV is moved to the `movers`. Each worker is one of them
    until it says that it is not, and then it computes. Rows that are computed go with steps, in order, and are there
    when these end.
    """

    def __init__(self, workers: List[str]) -> None:
        self.shares: dict[str, str] = {}
        self._workers = workers
        self._turns = 0
        self._willing = set(workers)
        self.movers = set(workers)
        self._unsure = set(workers)
        self._under_way: dict[int | str, list[tuple[str, Filled, int]]] = {}  # by step, or the worker it is moved to

    def begin(self, step: int, placed: List[Sequence]) -> tuple[str, list[ScheduledChunk]]:
        """Return the rows that go with this step, and the worker whose turn it is to compute them.

        No rows go before all workers have said whether they compute, or once what is under way is enough, as the end
        would wait for more.
        """
        self._share(placed)
        computing = [one for one in reversed(self._workers) if one in self._willing - self.movers]
        if self._unsure or not computing or self._are_few(_rest, placed):
            return "", []
        worker = computing[self._turns % len(computing)]
        self._turns += 1
        return worker, list(self._rows(step, worker, self._of(worker, placed)))

    def begin_move(self, worker: str, placed: List[Sequence]) -> list[ScheduledChunk]:
        """Return what is moved next to one of the `movers`, which waits for nothing."""
        self._share(placed)
        pieces = list(self._rows(worker, worker, self._of(worker, placed)))
        if not pieces:
            self._unsure.discard(worker)
        return pieces

    def moved(self, worker: str) -> None:
        """Note that the worker has what was under way to it."""
        self._unsure.discard(worker)
        for _, filled, stop in self._under_way.pop(worker, ()):
            filled.stop = stop

    def not_moved(self, worker: str, *, computes: bool) -> None:
        """Note that what was under way did not come. The worker gets nothing more, and unless it `computes` it is not
        asked for that.
        """
        for _, filled, _ in self._under_way.pop(worker, ()):
            filled.begun = filled.stop
        self.movers.discard(worker)
        self._unsure.discard(worker)
        if not computes:
            self._willing.discard(worker)

    def ended(self, step: int, unfilled: Iterable[str]) -> None:
        """Note that the step is over and all is filled that went with it, but by the `unfilled` workers, which are not
        asked again.
        """
        self._willing.difference_update(unfilled)
        for worker, filled, stop in self._under_way.pop(step, ()):
            if worker in self._willing:
                filled.stop = stop

    def is_done(self, placed: List[Sequence]) -> bool:
        """Return whether no more is left of each worker's share than goes with one step."""
        if any(one.request_id not in self.shares for one in placed if one.computed or one.in_flight):
            return False
        return self._are_few(_left, placed)

    def _are_few(self, rows: Callable[[Sequence], int], placed: List[Sequence]) -> bool:
        return all(sum(map(rows, self._of(worker, placed))) <= FILL_ROWS for worker in self._willing)

    def _share(self, placed: List[Sequence]) -> None:
        self.shares = share_out([one.request_id for one in placed], self._workers, self.shares)

    def _of(self, worker: str, placed: List[Sequence]) -> list[Sequence]:
        return [one for one in placed if self.shares.get(one.request_id) == worker and worker in self._willing]

    def _rows(self, under_way: int | str, worker: str, share: List[Sequence]) -> Iterator[ScheduledChunk]:
        """Yield what is left, the request first of which most is left.

        A prompt's rest comes in whole chunks, and would never find room beside the tokens that all others gain.
        """
        room = FILL_ROWS
        for sequence in sorted(share, key=_rest, reverse=True):
            filled = sequence.filled = sequence.filled or Filled(sequence.blocks.start)
            for piece in computed_from(sequence, filled.begun):
                if len(piece.tokens) > room:
                    break
                room -= len(piece.tokens)
                filled.begun = piece.stop
                self._under_way.setdefault(under_way, []).append((worker, filled, piece.stop))
                yield piece


def computed_from(sequence: Sequence, start: int) -> Iterator[ScheduledChunk]:
    """Yield what was computed from position `start` on, to be computed once more elsewhere. Nothing is sampled."""
    while start < sequence.computed:
        decode = start >= sequence.prompt_tokens
        end = sequence.computed if decode else min(sequence.computed, sequence.prompt_tokens)
        stop = min(start + PREFILL_CHUNK, end)
        tokens = tuple(sequence.tokens[start:stop])
        yield ScheduledChunk(sequence.request_id, tokens, start, sequence.blocks, decode, adapter=sequence.adapter)
        start = stop


def _rest(sequence: Sequence) -> int:
    """Rows that are not filled, nor on their way."""
    return sequence.computed - (sequence.filled or NOTHING).begun


def _left(sequence: Sequence) -> int:
    """The number of rows of a request that are not filled."""
    return sequence.computed - (sequence.filled or NOTHING).stop
