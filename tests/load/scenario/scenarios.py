"""A small scenario, and what tests do with it."""

from pathlib import Path

from livescale.load.scenario.file import CheckedScenario, read_scenario
from livescale.load.scenario.play import PlayOptions, play
from livescale.load.scenario.result import AnsweredQuestion, SimulationResult
from livescale.load.scenario.system import ScenarioSystem

# A burst that wants a second worker, while the planner and a host stand still or die.
SMALL = """\
topology: lambdascale-1
seconds: 5
models:
  - {name: chat, path: 8b, max-instances: 2}
arrivals:
  - rate: 2
    prompt-tokens: 400
    output-tokens: 8
    bursts: [{at: 1, seconds: 1.5, rate: 40}]
settings: {workers: 3, system: +zigzag}
faults:
  - {what: freeze, at: 1.2, who: planner, seconds: 0.3}
  - {what: kill, at: 2, who: worker-2, seconds: 0.5}
  - {what: delay, every: 2, seconds: 1}
"""
TWO_HOSTS = """\
hosts:
  - {name: lab, count: 2, memory: 2 GiB, nic: 20 MB/s, disk: 500 MB/s,
     gpus: [{count: 1, memory: 256 MiB, host-link: 500 MB/s}]}
"""


def write(tmp_path: Path, text: str = SMALL) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(text)
    return path


def read(tmp_path: Path, text: str = SMALL) -> CheckedScenario:
    return read_scenario(write(tmp_path, text))


def played(
    checked: CheckedScenario, seed: int = 0, *, wire: bool = False, options: PlayOptions | None = None
) -> tuple[SimulationResult, list[AnsweredQuestion]]:
    return play(ScenarioSystem(checked, seed, wire=wire), options or PlayOptions())


def digest(path: str) -> str:
    """The digest of a run in this process."""
    return played(read_scenario(Path(path)))[0].digest


def two_hosts(tmp_path: Path, text: str) -> ScenarioSystem:
    """The scenario `text` on two hosts with a GPU each, its topology lab.yaml."""
    (tmp_path / "lab.yaml").write_text(TWO_HOSTS)
    return ScenarioSystem(read(tmp_path, text), 0, wire=False)
