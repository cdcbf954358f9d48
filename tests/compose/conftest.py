"""The stacks of these tests. Without an engine, or an image named by LIVESCALE_IMAGE, the tests are skipped."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints import tiny_checkpoint
from tests.compose.stack import ComposeStack, running
from tests.compose.streams import MODEL

WORKERS = 3


def why_not() -> str | None:
    """Why there is no engine to run the stack in; None where there is one."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    reason = no_image(os.environ.get("LIVESCALE_IMAGE", "livescale"))
    return None if reason is None else f"{reason}; `make image` builds it"


def no_image(name: str) -> str | None:
    """Why there is no such image; None where there is one."""
    found = subprocess.run(("docker", "image", "inspect", name), capture_output=True, text=True, timeout=60)
    return None if found.returncode == 0 else f"no image {name}: {found.stderr.strip()}"


@pytest.fixture(scope="session", autouse=True)
def _engine() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    return tiny_checkpoint("llama")


@pytest.fixture(scope="module")
def stack(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeStack]:
    """One machine with three workers, two gateways and two routers, and a model to register."""
    made = ComposeStack(tmp_path_factory.mktemp("stack"), flags=("--scale", f"worker={WORKERS}"))
    made.add_model(MODEL, checkpoint)
    with running(made):
        yield made
