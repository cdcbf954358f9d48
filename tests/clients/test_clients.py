"""Clients and benchmarks that nobody here wrote ask a running system, from the environment of `make test-clients`."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.checkpoints import tiny_checkpoint
from tests.clients.conftest import BIN
from tests.system.conftest import System

HERE = Path(__file__).parent
PROGRAMS = sorted(path.stem for path in (HERE / "programs").glob("asks_*.py"))
SECONDS = 240
LLM_MODELS = """
- {{model_id: chat, model_name: m, api_base: "{url}/v1", api_key_name: none}}
- {{model_id: text, model_name: m, api_base: "{url}/v1", api_key_name: none, completion: true}}
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.skipif(not BIN.exists(), reason="make test-clients makes their environment"),
]


def run(directory: Path, *words: str | Path, **env: str) -> str:
    """Run a program of that environment without a hub. Returns what it printed."""
    own = {"HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "none", "PYTHONPATH": ""}
    done = subprocess.run(
        [BIN / words[0], *words[1:]],
        env={**os.environ, **own, **env},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize("program", [name for name in PROGRAMS if name != "asks_lm_eval"])
def test_a_library_is_content(asked: System, program: str, tmp_path: Path) -> None:
    run(tmp_path, "python", HERE / "programs" / f"{program}.py", asked.url)


def test_lm_eval_finds_the_log_likelihoods_of_its_own_backend(asked: System) -> None:
    words = (asked.url, tiny_checkpoint("llama"), ".")
    run(HERE / "tasks", "python", HERE / "programs" / "asks_lm_eval.py", *words)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_guidellm_measures_every_request(asked: System, path: str, tmp_path: Path) -> None:
    run(
        tmp_path,
        *("guidellm", "run", "--disable-console-interactive"),
        *("--backend", f"kind=openai_http,target={asked.url},model=m,request_format={path}"),
        *("--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6"),
        *("--data", "kind=synthetic_text,prompt_tokens=20,output_tokens=8"),
        *("--tokenizer", f"kind=huggingface_auto,model={tiny_checkpoint('llama')}"),
        *("--output", "kind=json,path=report.json"),
    )
    [benchmark] = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (6, 0)


def test_llm_talks_and_goes_on_with_its_talk(asked: System, tmp_path: Path) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(LLM_MODELS.format(url=asked.url))
    short = ("-o", "max_tokens", "5", "--key", "none")
    for words in (("-m", "chat", "hello"), ("-m", "chat", "-c", "more"), ("-m", "chat", "--no-stream", "hello")):
        assert run(tmp_path, "llm", *words, *short, LLM_USER_PATH=str(tmp_path)).strip()
    assert run(tmp_path, "llm", "-m", "text", "hello", *short, LLM_USER_PATH=str(tmp_path)).strip()
