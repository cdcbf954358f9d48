"""Counts requests that miss the SLO while an instance loads, by its link's speed: live against stopping the world."""

from collections.abc import Iterator, Sequence
from random import Random

from livescale.load.bench.record import Record, measured
from livescale.services.planner.live import PrefillDemand, longest_wait
from livescale.services.worker.live.policy import OFF, ZIGZAG, LiveTask, Rule
from livescale.services.worker.live.simulation import simulate

LAYERS, LOADS = 32, (0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0)  # a load in parts of what a layer takes to run
RATE, WAITING, COMING, SEEDS = 1.5, 3, 60, range(5)  # a burst of that many times what one instance can do
SLO = 5.0 * LAYERS  # so many times what a request takes when it is alone: the paper's (6.1)


def needs(bench: str) -> Iterator[Record]:
    """A case for each speed: shares of requests. It says what `--live-when needed` would do."""
    for load in LOADS:
        ready = [load * (layer + 1) for layer in range(LAYERS)]
        demand = PrefillDemand(waiting=WAITING * LAYERS, arriving=RATE, rate=1.0, serving=1, prompt=LAYERS)
        wait = longest_wait(demand.at_worst(ready[-1]), ready[-1:])
        chosen = "live" if wait > SLO else "stop"
        text = f"{LAYERS} layers, load {load:g}: over the SLO, live against stop; by need: {chosen}"
        yield measured(bench, text, late_share(ready, ZIGZAG), "requests", late_share(ready, OFF))


def late_share(ready: Sequence[float], rule: Rule) -> float:
    """The share of all requests of all bursts that miss the SLO."""
    runs = [simulate(burst(Random(seed)), ready, rule) for seed in SEEDS]
    late = sum(run.ends[task.id] - task.arrival > SLO for run in runs for task in run.tasks)
    return late / sum(len(run.tasks) for run in runs)


def burst(chance: Random) -> list[LiveTask]:
    """Some wait when the load begins, and more come at random."""
    gaps = [chance.expovariate(RATE / LAYERS) for _ in range(COMING)]
    arrivals = [0.0] * WAITING + [sum(gaps[: number + 1]) for number in range(COMING)]
    return [LiveTask(f"{number:02}", at) for number, at in enumerate(arrivals)]
