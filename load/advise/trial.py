"""The scenarios that advice is found with: a pool under the traces, and with something less or more than that."""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from pathlib import Path

from msgspec.structs import replace

from livescale.load.advise.search import PoolChoice
from livescale.load.scenario.arrivals import Arrivals
from livescale.load.scenario.file import ScenarioFile, check_scenario
from livescale.load.scenario.system import ScenarioSystem
from livescale.load.trace import TraceError, parse_window
from livescale.load.trace_files import read_trace
from livescale.services.supervisor.model_settings import ModelSettings
from livescale.shared.topology.file import find_topology
from livescale.shared.topology.topology import Topology


@dataclass(frozen=True)
class Workload:
    """What is served: models with the requests for each, on the GPUs of a topology, for so many seconds.

    `settings` are those of a scenario, but for the number of workers.
    """

    topology: str
    models: Sequence[ModelSettings]
    arrivals: Sequence[Arrivals]
    seconds: float
    settings: dict[str, object]
    seed: int = 0

    @property
    def ranks(self) -> int:
        return int(str(self.settings.get("tensor-parallel-size", 1)))

    def pools(self, gpus: int) -> Sequence[int]:
        """The sizes of pool that come into question: an instance of each model at least."""
        return range(self.ranks * len(self.models), gpus + 1, self.ranks)

    def most_of(self, pool: int) -> int:
        """How many instances each model can have of a pool."""
        return pool // (self.ranks * len(self.models))

    def system(
        self, choice: PoolChoice, *, bursts: int = 1, slow_link: bool = False, name: str = "advised"
    ) -> ScenarioSystem:
        """What is simulated: requests of bursts may come several times, or the first host have half its card.

        Raises ValueError.
        """
        most = max(1, choice.workers // self.ranks)
        models = [replace(each, min_instances=choice.least, max_instances=most) for each in self.models]
        file = ScenarioFile(
            topology=self.topology,
            seconds=self.seconds,
            models=tuple(models),
            arrivals=tuple(replace(each, burst_scale=bursts) for each in self.arrivals),
            settings={**self.settings, "workers": choice.workers},
        )
        checked = check_scenario(file, name, Path())
        if slow_link:
            checked = dataclass_replace(checked, topology=with_slow_link(checked.topology))
        return ScenarioSystem(checked, self.seed, wire=False)


def with_slow_link(topology: Topology) -> Topology:
    """The topology with half the rate on the network cards of its first host."""
    first, *others = topology.hosts
    gpus = [replace(gpu, nic_in=gpu.nic_in / 2, nic_out=gpu.nic_out / 2) for gpu in first.gpus]
    slow = replace(first, nic_in=first.nic_in / 2, nic_out=first.nic_out / 2, gpus=gpus)
    return replace(topology, hosts=[slow, *others])


def check_traces(traces: tuple[Path, ...], window: str) -> float:
    """The seconds of the window. Raises ValueError where it has no end, or a trace cannot be read."""
    try:
        seconds = parse_window(window).seconds
    except ValueError as error:
        raise ValueError(f"--window: {error}") from None
    if seconds is None:
        raise ValueError(f"--window: {window!r} has no end; write START+SECONDS")
    for trace in traces:
        try:
            read_trace(trace)
        except TraceError as error:
            raise ValueError(f"--trace: {error}") from None
    return seconds


def count_gpus(topology: str) -> int:
    try:
        return len(find_topology(topology).gpus)
    except ValueError as error:
        raise ValueError(f"--topology: {error}") from None
