"""An instance that helps targets (BlitzScale 5.2, Fig. 16, lines 4-7): when it asks whom for work. Pure."""

from collections.abc import Iterator

from services.worker.zigzag.effects import Pull, SourceEffect, Withdraw
from shared.invariants import check


class Source:
    """It pulls only when nothing of its own waits, from all targets that it helps, and takes what comes first.

    Two targets may answer at the same time: it runs both tasks before it pulls again.
    """

    def __init__(self) -> None:
        self._targets: dict[str, None] = {}  # in the order in which it came to help them
        self._asked: set[str] = set()

    @property
    def helps(self) -> bool:
        """Whether it helps anybody: else it is an instance like any other."""
        return bool(self._targets)

    def help(self, target: str) -> tuple[SourceEffect, ...]:
        """From now on it helps this target too; one that waits already asks it at once."""
        self._targets.setdefault(target)
        if not self._asked or target in self._asked:
            return ()
        self._asked.add(target)
        return (Pull(target, "nothing waits here"),)

    def idle(self, waiting: int) -> tuple[SourceEffect, ...]:
        """Nothing runs here, and so many tasks of its own wait, those that were handed over included."""
        if waiting or self._asked:
            return ()
        self._asked = set(self._targets)
        return tuple(Pull(target, "nothing waits here") for target in self._targets)

    def busy(self, target: str | None = None) -> tuple[SourceEffect, ...]:
        """Work has come: from this target, or of its own. The other targets need not answer any more."""
        others = [other for other in self._targets if other in self._asked and other != target]
        self._asked = set()
        return tuple(Withdraw(other, "work came from elsewhere") for other in others)

    def leave(self, target: str) -> None:
        """The target released it, or is gone."""
        self._targets.pop(target, None)
        self._asked.discard(target)

    def check_invariants(self) -> None:
        """Only those whom it helps are asked. Raises InvariantBroken."""
        check(self._broken())

    def _broken(self) -> Iterator[str]:
        for target in self._asked - self._targets.keys():
            yield f"source: {target} is asked, and not helped"
