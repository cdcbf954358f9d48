"""Copies of KV that are due, block by block as they are asked for, and together where they may be. Pure."""

from livescale.services.worker.batch import KvCopy


class Copies:
    """In the order in which they were asked for."""

    def __init__(self) -> None:
        self._copies: list[KvCopy] = []

    def add(self, source: int, target: int) -> None:
        """One block into another."""
        last = self._copies[-1] if self._copies else None
        if last is not None and _goes_on(last, source, target):
            longer = KvCopy(range(last.source.start, source + 1), range(last.target.start, target + 1))
            self._copies[-1] = longer
        else:
            self._copies.append(KvCopy(range(source, source + 1), range(target, target + 1)))

    def take(self) -> tuple[KvCopy, ...]:
        """All of them; they are not due again."""
        copies, self._copies = tuple(self._copies), []
        return copies


def _goes_on(last: KvCopy, source: int, target: int) -> bool:
    """Whether this block follows those of `last` in the same memory, and neither copy reads what the other writes."""
    follows = source == last.source.stop != 0 and target == last.target.stop != 0
    return follows and source not in last.target and target not in last.source
