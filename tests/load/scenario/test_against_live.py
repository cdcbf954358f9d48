"""A scenario that is run live too: a real system answers and scales as the simulated one."""

import asyncio
from pathlib import Path

import pytest

from livescale.load.scenario.against_live import observe
from livescale.load.scenario.live_run import run_live
from livescale.load.scenario.play import PlayOptions, play
from livescale.load.scenario.requests import draw_requests
from tests.checkpoints import tiny_checkpoint
from tests.load.scenario.scenarios import two_hosts

LIVE = """\
topology: lab.yaml
seconds: 4
models:
  - {name: chat, path: CHECKPOINT, max-instances: 2}
arrivals:
  - {rate: 1, prompt-tokens: 300, output-tokens: 4, bursts: [{at: 1, seconds: 1, rate: 150}]}
settings: {workers: 2}
"""


@pytest.mark.slow
@pytest.mark.system
def test_a_live_run_answers_all_requests_and_scales_as_the_simulated_one_does(tmp_path: Path) -> None:
    made = two_hosts(tmp_path, LIVE.replace("CHECKPOINT", str(tiny_checkpoint("llama"))))
    requests = draw_requests(made)
    run = asyncio.run(run_live(made, requests, lambda text: None, lambda name, line: None))
    simulated = observe(play(made, PlayOptions())[0])
    assert len(run.ttft) == len(simulated.ttft) == len(requests)
    assert {step[0] for step in run.steps} == {step[0] for step in simulated.steps} == {"out"}
    assert len(run.ready) == len(simulated.ready) > 0
    assert run.used_seconds > 4
    assert run.machine is not None
    assert 0 < run.machine <= 1
