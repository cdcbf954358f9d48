"""Chaos as its user starts it: real processes are killed and frozen under load, and every token is checked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints import tiny_checkpoint

LIVESCALE = (sys.executable, "-m", "livescale.services.cli.main")


@pytest.mark.system
@pytest.mark.parametrize(
    ("live", "minutes", "seed", "faults"),
    [
        ("zigzag", 0.17, 4355, 5),
        pytest.param("zigzag", 1, 1934, 6, marks=pytest.mark.slow),
        pytest.param("off", 1, 1934, 6, marks=pytest.mark.slow),
    ],
)
def test_faults_of_every_kind_under_load_lose_nothing(
    tmp_path: Path, live: str, minutes: float, seed: int, faults: int
) -> None:
    """These seeds make faults of every kind in so short a time."""
    words = ("--model", str(tiny_checkpoint("llama")), "--minutes", str(minutes), "--seed", str(seed), "--rate", "1.2")
    command = [*LIVESCALE, "chaos", *words, "--live", live]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    log = tmp_path / ".livescale" / "chaos.log"
    assert done.returncode == 0, done.stdout + done.stderr + log.read_text()[-3000:]
    report = json.loads(done.stdout)
    assert (report["wrong_tokens"], report["lost_tokens"], report["incomplete"]) == (0, 0, [])
    assert (report["not_whole"], report["left"]) == ([], [])
    assert report["streams"] >= 20 * minutes
    assert live == "zigzag" or report["handed_over"] == 0
    assert sum(report["faults"].values()) >= faults
    kinds = {kind.partition(" ")[0] for kind in report["faults"]}
    assert kinds == {"kill", "freeze", "scale"}
    assert {"kill worker", "kill gateway"} <= set(report["faults"])
    assert (tmp_path / "livescale-chaos.html").stat().st_size > 10_000
