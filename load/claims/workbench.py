"""What claims are measured with: simulated systems, whose runs are kept by the digest of scenario and code."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from livescale.load.bench.systems.make_scenarios import make_scenarios
from livescale.load.bench.systems.play import SystemRun
from livescale.load.bench.systems.rows import SystemSummary, by_system, find_slo, summarise
from livescale.load.bench.systems.runs import KeptRuns, run_all
from livescale.load.bench.systems.scenario import Scenario, with_workers
from livescale.load.bench.systems.settings import SystemsBenchSettings
from livescale.load.trace import Trace
from livescale.services.cli.systems import find_system
from livescale.shared.runtime.settings import EngineProfile
from livescale.shared.topology.file import find_topology

# The files of real traces, and the stretches of the papers' lengths; a short run takes the first part of the first.
TRACES = {
    "AzureCode": ("azure_code_2023.csv", ((835, 360), (1076, 360))),
    "AzureConv": ("azure_conv_2023.csv", ((0, 480), (1580, 480))),
}
PART_SECONDS = 60
WARM_UP = 10.0


class Mode(StrEnum):
    """How much is run: pure and short claims; all, with one seed and a part of one window; or all of everything."""

    QUICK = "--quick"
    DEFAULT = "default"
    FULL = "--full"

    @property
    def seeds(self) -> int:
        return 3 if self is Mode.FULL else 1


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The cluster and the model of simulated claims."""

    topology: str
    workers: int
    profile: EngineProfile
    parameters_gb: float
    kv_tokens: int = 400_000

    def __str__(self) -> str:
        return f"{self.topology}, {self.workers} workers, {self.profile}, {self.parameters_gb:g} GB"


@dataclass(frozen=True)
class WindowRuns:
    """The runs of some systems on one stretch of requests, by system."""

    name: str
    runs: Mapping[str, Sequence[SystemRun]]

    def summary(self, system: str) -> SystemSummary:
        """The medians of a system's runs, with SLOs by the one that has all workers, where it was run."""
        _, slo = find_slo(self.runs)
        return summarise(self.runs[system], slo)


@dataclass(kw_only=True)
class Workbench:
    """Runs what claims ask for, each scenario once."""

    mode: Mode
    kept: KeptRuns
    traces: Path | None
    jobs: int
    tell: Callable[[str], None]
    _done: dict[str, SystemRun] = field(default_factory=dict)

    def lacks(self, traces: Sequence[str]) -> str:
        """Why traces cannot be replayed; nothing if they can."""
        for name in traces:
            file = TRACES[name][0]
            if self.traces is None:
                return f"No --traces with {file}"
            if not (self.traces / file).is_file():
                return f"There is no {file} in {self.traces}"
        return ""

    def play(self, setting: Setting, arrivals: Trace, seconds: float, systems: Sequence[str]) -> WindowRuns:
        """Run systems on made-up arrivals; every request counts."""
        topology = with_workers(find_topology(setting.topology), setting.workers)
        scenarios = [
            Scenario(
                system=name,
                values=find_system(name).values(),
                simulated=find_system(name).simulated,
                topology=topology,
                engine_profile=setting.profile,
                parameters_gb=setting.parameters_gb,
                kv_tokens=setting.kv_tokens,
                arrivals=arrivals,
                seconds=seconds,
                warm_up=0.0,
                seed=seed,
            )
            for seed in range(self.mode.seeds)
            for name in systems
        ]
        return WindowRuns("made up", by_system(self._run(scenarios)))

    def replay(self, setting: Setting, trace: str, systems: Sequence[str]) -> list[WindowRuns]:
        """Run systems on the windows of a trace, at half of what distserve-full can prefill."""
        assert self.traces is not None
        file, stretches = TRACES[trace]
        if self.mode is Mode.FULL:
            windows = [f"{at}+{seconds}" for at, seconds in stretches]
        else:
            windows = [f"{stretches[0][0]}+{PART_SECONDS}"]
        return [self._replay(setting, self.traces / file, window, systems) for window in windows]

    def _replay(self, setting: Setting, file: Path, window: str, systems: Sequence[str]) -> WindowRuns:
        settings = SystemsBenchSettings(
            trace=str(file),
            window=window,
            systems=",".join(systems),
            seeds=self.mode.seeds,
            workers=setting.workers,
            topology=setting.topology,
            engine_profile=setting.profile,
            parameters_gb=setting.parameters_gb,
            kv_tokens=setting.kv_tokens,
            warm_up=WARM_UP,
        )
        return WindowRuns(window, by_system(self._run(make_scenarios(settings)[1])))

    def _run(self, scenarios: Sequence[Scenario]) -> list[SystemRun]:
        digests = [scenario.digest() for scenario in scenarios]
        missing = [one for one, digest in zip(scenarios, digests, strict=True) if digest not in self._done]
        for run in run_all(missing, self.kept, self.jobs, self.tell):
            self._done[run.digest] = run
        return [self._done[digest] for digest in digests]
