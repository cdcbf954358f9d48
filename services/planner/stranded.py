"""Targets that lost what they received along, and when another way is looked for. Pure."""

from collections.abc import Iterator

REPLAN_SECONDS = 0.5  # the first new plan is made at once, the next ones not sooner than this after it


class Stranded:
    """Why each of them is stranded, whom to avoid as a sender, and what stood in the way of the last new plan."""

    def __init__(self, now: float) -> None:
        self._why: dict[str, str] = {}  # by target
        self._due = now
        self._no_plan = ""
        self.avoid: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return iter(self._why)

    def __len__(self) -> int:
        return len(self._why)

    def __contains__(self, worker: object) -> bool:
        return worker in self._why

    def add(self, worker: str, why: str, sender: str) -> None:
        """Better not from `sender` again."""
        self._why[worker] = why
        self.avoid.add(sender)

    def forget(self, worker: str) -> str:
        """Why it was stranded, if it was."""
        return self._why.pop(worker, "")

    def is_due(self, now: float) -> bool:
        """Whether it is time to look for another way."""
        return bool(self._why) and now >= self._due

    def looked(self, now: float, no_plan: str = "") -> None:
        """Another way was looked for; why there is none, if there is none."""
        self._due = now + REPLAN_SECONDS
        self._no_plan = no_plan or self._no_plan

    @property
    def problem(self) -> str:
        """What they wait for, as the end of a sentence."""
        return f"; {self._no_plan}" if self._why and self._no_plan else ""
