"""A scenario that is run live too: what is refused, what counts as a busy machine, and a real system."""

import asyncio
from pathlib import Path

import pytest

from livescale.load.scenario.against_live import observe
from livescale.load.scenario.live_run import live_settings, run_live
from livescale.load.scenario.play import PlayOptions, play
from livescale.load.scenario.requests import draw_requests
from livescale.load.scenario.system import ScenarioSystem
from tests.checkpoints import tiny_checkpoint
from tests.load.scenario.scenarios import SMALL, read

TOPOLOGY = """\
hosts:
  - {name: lab, count: 2, memory: 2 GiB, nic: 20 MB/s, disk: 500 MB/s,
     gpus: [{count: 1, memory: 256 MiB, host-link: 500 MB/s}]}
"""
LIVE = """\
topology: lab.yaml
seconds: 4
models:
  - {name: chat, path: CHECKPOINT, max-instances: 2}
arrivals:
  - {rate: 1, prompt-tokens: 300, output-tokens: 4, bursts: [{at: 1, seconds: 1, rate: 150}]}
settings: {workers: 2}
"""


def system(tmp_path: Path, text: str) -> ScenarioSystem:
    (tmp_path / "lab.yaml").write_text(TOPOLOGY)
    return ScenarioSystem(read(tmp_path, text), 0, wire=False)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SMALL, "faults: live runs have none"),
        (SMALL.partition("faults:")[0], r"models\[0\].path: a real system reads parameters"),
        (SMALL.partition("faults:")[0].replace("+zigzag", "ideal"), "system: no real link takes no time"),
    ],
)
def test_what_only_a_simulation_can_do_is_refused_by_name(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        live_settings(system(tmp_path, text))


@pytest.mark.slow
@pytest.mark.system
def test_a_live_run_answers_all_requests_and_scales_as_the_simulated_one_does(tmp_path: Path) -> None:
    made = system(tmp_path, LIVE.replace("CHECKPOINT", str(tiny_checkpoint("llama"))))
    requests = draw_requests(made)
    run = asyncio.run(run_live(made, requests, lambda text: None, lambda name, line: None))
    simulated = observe(play(made, PlayOptions())[0])
    assert len(run.ttft) == len(simulated.ttft) == len(requests)
    assert {step[0] for step in run.steps} == {step[0] for step in simulated.steps} == {"out"}
    assert len(run.ready) == len(simulated.ready) > 0
    assert run.used_seconds > 4
    assert run.machine is not None
    assert 0 < run.machine <= 1
