"""KV blocks that are kept for requests which other workers prefill: by whom, and for how long. Pure.

Blocks of a reservation have two lives. That of the request ends when the reservation is dropped, or its request runs
here. That of the writer ends when nothing writes into them any more. They are free when both have ended, so that what
comes late never lands in blocks of another request.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from livescale.services.worker.kv.block_manager import BlockManager
from livescale.services.worker.scheduling.sequence import Sequence


@dataclass(eq=False)
class Reservation:
    """Blocks for `sequence`, owned under `name`. `wanted` is the life of the request, `written` that of the writer.

    Positions before `cached` were in the prefix cache.
    """

    name: str
    sequence: Sequence
    cached: int
    wanted: bool = True
    written: bool = True


class Reservations:
    """All reservations of one scheduler, the oldest first. `on_drop` is told of each that is dropped, and why."""

    def __init__(self, kv: BlockManager) -> None:
        self.on_drop: Callable[[Reservation, str], None] = lambda reservation, reason: None
        self._kv = kv
        self._kept: dict[str, Reservation] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self._kept.values())

    @property
    def blocks(self) -> int:
        """The number of KV blocks that all reservations keep together."""
        return sum(len(self._kv.owned(name)) for name in self._kept)

    def add(self, reservation: Reservation) -> None:
        """Keep a reservation, whose blocks are owned under its name."""
        self._kept[reservation.name] = reservation

    def drop(self, name: str, reason: str) -> bool:
        """End the life of the request. Returns whether the blocks are free."""
        reservation = self._kept.get(name)
        if reservation is None:
            return True
        if reservation.wanted:
            reservation.wanted = False
            self.on_drop(reservation, reason)
        return self._free(reservation)

    def drop_all(self, reason: str) -> None:
        """Drop all reservations for this `reason`. Blocks that are still written to stay until that is over."""
        for name in list(self._kept):
            self.drop(name, reason)

    def make_way(self, reason: str) -> bool:
        """Drop the newest reservation, for a request that could run. Returns whether blocks became free by that.

        None is dropped while the blocks of another one, which was dropped, are still written to.
        """
        if not all(one.wanted for one in self._kept.values()):
            return False
        newest = next(reversed(self._kept), None)
        return newest is not None and self.drop(newest, reason)

    def writer_ended(self, reservation: Reservation) -> None:
        """Note that nothing writes to the blocks any more; those of a dropped reservation become free."""
        reservation.written = False
        if reservation.name in self._kept:
            self._free(reservation)

    def take(self, name: str) -> Sequence:
        """Have the request of a reservation own the blocks by its id, and forget the reservation.

        Raises ValueError where the reservation was dropped, or is still written to.
        """
        reservation = self._kept.get(name)
        if reservation is None or not reservation.wanted or reservation.written:
            raise ValueError(f"{name} cannot be taken over: it was dropped, or is still written to")
        self._kv.rename(name, reservation.sequence.request_id)
        del self._kept[name]
        return reservation.sequence

    def _free(self, reservation: Reservation) -> bool:
        if reservation.wanted or reservation.written:
            return False
        self._kv.free(reservation.name)
        del self._kept[reservation.name]
        return True

    def broken(self) -> Iterator[str]:
        """Describe each invariant that does not hold: a reservation that is kept has a life left, and its blocks."""
        for name, one in self._kept.items():
            if not (one.wanted or one.written):
                yield f"reservations: both lives of {name} have ended, and it keeps {one.sequence.blocks}"
            if name in self._kv.owners and self._kv.owned(name) != one.sequence.blocks:
                yield f"reservations: {name} is for {one.sequence.blocks} and owns {self._kv.owned(name)}"
