"""aiperf measures a running system, from the environment of its own that `make test-clients` makes."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.checkpoints import tiny_checkpoint
from tests.docs.pages import ROOT
from tests.system.conftest import System

AIPERF = ROOT / ".aiperf" / "bin" / "aiperf"
SECONDS = 240
REQUESTS, TOKENS = 6, 8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.skipif(not AIPERF.exists(), reason="make test-clients makes its environment"),
]


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_it_measures_every_request(asked: System, kind: str, tmp_path: Path) -> None:
    # Without a hub it would take the directory of a tokenizer for a name there, so it is not told that there is none.
    env = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    words = [
        *("profile", "--model", "m", "--url", asked.url, "--endpoint-type", kind, "--streaming", "--ui", "none"),
        *("--tokenizer", str(tiny_checkpoint("llama")), "--concurrency", "2", "--request-count", str(REQUESTS)),
        *("--synthetic-input-tokens-mean", "20", "--output-tokens-mean", str(TOKENS)),
        *("--extra-inputs", "ignore_eos:true", "--use-server-token-count", "--artifact-dir", str(tmp_path)),
    ]
    done = subprocess.run(
        [AIPERF, *words],
        env={**env, "PYTHONPATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    [report] = tmp_path.rglob("profile_export_aiperf.json")
    result = json.loads(report.read_text())
    assert result["request_count"]["avg"] == REQUESTS
    assert not result["error_summary"]
    assert result["total_usage_completion_tokens"]["avg"] == REQUESTS * TOKENS
