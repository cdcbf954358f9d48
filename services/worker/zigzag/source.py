"""An instance that helps targets (BlitzScale 5.2, Fig. 16, lines 4-7): when it asks whom for work. Pure."""

from collections.abc import Iterator, Set
from itertools import islice

from livescale.services.worker.zigzag.effects import Pull, SourceEffect, Withdraw
from livescale.shared.policy.invariants import check


class Source:
    """It pulls only when nothing of its own waits. Targets that may have more are asked one at a time, in turn; where
    none has anything all are, and it takes what comes first.

    Two targets may then answer at the same time: it runs what both gave before it pulls again.
    """

    def __init__(self) -> None:
        self._targets: dict[str, None] = {}  # in the order in which it came to help them
        self._have_more: dict[str, None] = {}  # or were never asked; whoever gave last comes last
        self._asked: set[str] = set()

    @property
    def helps(self) -> bool:
        """Whether it helps anybody: else it is an instance like any other."""
        return bool(self._targets)

    def help(self, target: str) -> tuple[SourceEffect, ...]:
        """From now on it helps this target too; one that waits already for all others asks it at once."""
        asks = bool(self._asked) and self._asked == self._targets.keys()
        if target not in self._targets:
            self._targets[target] = self._have_more[target] = None
        return self._ask({target}) if asks else ()

    def idle(self, waiting: int) -> tuple[SourceEffect, ...]:
        """Nothing runs here, and so many tasks of its own wait, those that were handed over included."""
        if waiting or self._asked:
            return ()
        return self._ask(set(islice(self._have_more, 1)) or self._targets.keys())

    def nothing(self, target: str) -> tuple[SourceEffect, ...]:
        """This target, which was asked, has nothing for now: others may."""
        self._have_more.pop(target, None)
        if target not in self._asked:
            return ()
        if not self._have_more:
            return self._ask(self._targets.keys())
        self._asked.remove(target)
        return Withdraw(target, "others may have something"), *self._ask(set(islice(self._have_more, 1)))

    def busy(self, target: str | None = None, *, more: bool = False) -> tuple[SourceEffect, ...]:
        """Work has come: from this target, which has more or not, or of its own. The other targets need not answer any
        more."""
        others = [other for other in self._targets if other in self._asked and other != target]
        self._asked = set()
        if target is not None:
            self._have_more.pop(target, None)
        if target in self._targets and more:
            self._have_more[target] = None
        return tuple(Withdraw(other, "work came from elsewhere") for other in others)

    def leave(self, target: str) -> None:
        """The target released it, or is gone."""
        self._targets.pop(target, None)
        self._have_more.pop(target, None)
        self._asked.discard(target)

    def _ask(self, targets: Set[str]) -> tuple[SourceEffect, ...]:
        new = [target for target in self._targets if target in targets and target not in self._asked]
        self._asked |= set(new)
        return tuple(Pull(target, "nothing waits here") for target in new)

    def check_invariants(self) -> None:
        """Only those whom it helps are asked, or known to have more. Raises InvariantBroken."""
        check(self._broken())

    def _broken(self) -> Iterator[str]:
        for target in (self._asked | self._have_more.keys()) - self._targets.keys():
            yield f"source: {target} is asked, or has more, and is not helped"
