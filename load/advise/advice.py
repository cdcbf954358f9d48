"""Finds what to advise by simulations, and what breaks first with less."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from livescale.load.advise.judge import Judged, ShareSlos, judge
from livescale.load.advise.search import Found, PoolChoice, search
from livescale.load.advise.trial import Workload
from livescale.load.scenario.play import PlayOptions, Progress, play
from livescale.load.scenario.system import ScenarioSystem

LESS_GPU, SLOW_LINK, MORE_BURSTS = "one GPU less", "one link half as fast", "twice the bursts"


@dataclass(frozen=True)
class Advice:
    """The smallest pool that holds, with all that was tried, and what came of it with less; no pool if none holds."""

    workload: Workload
    slos: ShareSlos
    found: Found[Judged]
    less: dict[str, Judged] = field(default_factory=dict)

    @property
    def best(self) -> Judged | None:
        return None if self.found.choice is None else self.found.tried[self.found.choice]

    @property
    def most_used(self) -> int:
        """The most instances that were there at a time, of all models."""
        best = self.best
        workers = 0 if best is None else round(max((count for _, count in best.result.run.workers), default=0))
        return -(-workers // self.workload.ranks)

    def sentence(self) -> str:
        share = f"{100 * self.slos.share:g} % of requests"
        if self.found.choice is None:
            largest = max(choice.workers for choice in self.found.tried)
            return f"No pool meets the SLOs: with {largest} workers, too, fewer than {share} are in time."
        workers, least = self.found.choice
        return (
            f"A pool of {workers} meets the SLOs for {share}, with min-instances {least} and max-instances "
            f"{max(1, least, self.most_used)}."
        )

    def rows(self) -> list[list[str]]:
        tried = sorted(self.found.tried.items())
        return [
            *([tell_choice(choice), *each.row()] for choice, each in tried),
            *([name, *each.row()] for name, each in self.less.items()),
        ]


@dataclass(frozen=True)
class Adviser:
    """Simulates a workload on pools of one topology. `tell` hears of each simulation, `progress` how far it is."""

    workload: Workload
    slos: ShareSlos
    gpus: int
    tell: Callable[[str], None] = lambda text: None
    progress: Callable[[Progress], None] = lambda progress: None

    def advise(self) -> Advice:
        """Raises ValueError, as where models do not fit on a GPU."""
        load = self.workload
        pools = load.pools(self.gpus)
        if not pools:
            needed = load.ranks * len(load.models)
            raise ValueError(f"--topology: it has {self.gpus} GPUs, and an instance of each model needs {needed}")
        found = search(pools, load.most_of, lambda choice: self._try(tell_choice(choice), load.system(choice)))
        less = {} if found.choice is None else self._less(found.choice, found.tried, pools[0])
        return Advice(load, self.slos, found, less)

    def _less(self, best: PoolChoice, tried: Mapping[PoolChoice, Judged], fewest: int) -> dict[str, Judged]:
        """What comes of less than the best; it may have been tried already."""
        load, found = self.workload, dict[str, Judged]()
        fewer = best.workers - load.ranks  # a GPU less is an instance less
        if fewer >= fewest:
            choice = PoolChoice(fewer, min(best.least, load.most_of(fewer)))
            found[LESS_GPU] = tried.get(choice) or self._try(LESS_GPU, load.system(choice, name=LESS_GPU))
        found[SLOW_LINK] = self._try(SLOW_LINK, load.system(best, slow_link=True, name=SLOW_LINK))
        found[MORE_BURSTS] = self._try(MORE_BURSTS, load.system(best, bursts=2, name=MORE_BURSTS))
        return found

    def _try(self, name: str, system: ScenarioSystem) -> Judged:
        result, _ = play(system, PlayOptions(tell=self.progress))
        judged = judge(result, self.slos)
        self.tell(f"{name}: {100 * judged.share:.2f} % in time, {judged.tell()}")
        return judged


def tell_choice(choice: PoolChoice) -> str:
    return f"a pool of {choice.workers}, min-instances {choice.least}"
