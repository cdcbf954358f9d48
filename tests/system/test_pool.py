"""The parameter pool with real processes: a host that is killed, a version that replaces another, a model removed."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from livescale.load.make_model import make_model
from tests.checkpoints import copy_checkpoint
from tests.system.conftest import System, started

pytestmark = [pytest.mark.system, pytest.mark.slow]

PATIENCE_SECONDS = 120.0
ASK = {"model": "m", "prompt": [5, 6, 7, 8], "max_tokens": 24, "temperature": 0, "return_token_ids": True}


def call(system: System, method: str, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(system.url + path, data=data, method=method, headers={"content-type": "application/json"})
    with urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return json.load(answer)


def model(system: System, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next((one for one in system.status()["models"] if one["name"] == name), {})
    return found


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def answer(system: System) -> list[int]:
    tokens: list[int] = call(system, "POST", "/v1/completions", ASK)["choices"][0]["token_ids"]
    return tokens


def test_copies_come_back_versions_follow_each_other_and_a_removed_model_leaves_nothing(tmp_path: Path) -> None:
    with started(tmp_path) as system:
        idle = {"name": "idle", "path": str(copy_checkpoint("qwen2", tmp_path)), "dtype": "float32", "min_instances": 0}
        call(system, "POST", "/admin/v1/models", idle)
        until(lambda: model(system, "idle")["copies"] == ["host-0"])
        first = answer(system)

        pids = {one["id"]: one["pid"] for one in system.status()["processes"]}
        os.kill(pids["host-0"], signal.SIGKILL)
        until(lambda: "host-0" not in model(system, "m")["copies"])
        until(lambda: model(system, "idle")["copies"] == ["host-0"] and "host-0" in model(system, "m")["copies"])
        assert answer(system) == first

        other = make_model(tmp_path / "other", "llama", "tiny", seed=8)
        call(system, "POST", "/admin/v1/models", {"name": "m", "path": str(other), "dtype": "float32"})
        answers = [first]

        def changed() -> bool:
            answers.append(answer(system))
            return answers[-1] != first

        until(changed)
        until(lambda: len(model(system, "m")["copies"]) == 2 and answer(system) == answers[-1])
        assert all(one in (first, answers[-1]) for one in answers)

        call(system, "DELETE", "/admin/v1/models/idle")
        until(lambda: model(system, "idle") == {})
