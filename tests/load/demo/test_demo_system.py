"""The demo as its user starts it: real processes, a real burst, a real check."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints import tiny_checkpoint

LIVESCALE = (sys.executable, "-m", "livescale.services.cli.main")


@pytest.mark.system
def test_the_demo_serves_a_burst_checks_every_token_and_reports(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    arrivals = [*range(5), *(2 + hundredth / 100 for hundredth in range(40))]
    trace.write_text("arrival_s,prompt,output\n" + "".join(f"{at},1500,30\n" for at in sorted(arrivals)))
    # Seconds of work at once, on a fast machine too: the demo is good only if that brings an instance.
    more = ["--rate-scale", "4", "--length-scale", "1", "--duration", "5"]
    command = [*LIVESCALE, "demo", "--model", str(tiny_checkpoint("llama")), "--trace", str(trace), *more]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every stream was complete and right" in done.stdout
    assert "asked again undisturbed, had the same tokens" in " ".join(done.stdout.split())
    assert "Machine: " in done.stdout
    assert re.search(r"burst +\d+ +0 ", done.stdout)
    page = (tmp_path / "livescale-demo.html").read_text()
    assert "Every stream was complete and right" in page
    assert page.count("<svg") in (6, 7)  # that of tokens and blocks is there if an instance shared tokens
