"""The image: what it has, what it lacks, and that it computes, confined as it is meant to run."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from livescale.load.engine_alone import undisturbed
from livescale.load.records import Ask
from tests.checkpoints import tiny_checkpoint
from tests.compose.conftest import why_not
from tests.compose.stack import docker

pytestmark = [pytest.mark.docker]

IMAGE = os.environ.get("LIVESCALE_IMAGE", "livescale")
MOST_BYTES = 2_500_000_000
CONFINED = (
    "--rm",
    "--read-only",
    "--cap-drop=ALL",
    "--network=none",
    "--tmpfs=/tmp",
    "--security-opt=no-new-privileges",
)
ASKS = [Ask(index, 0.0, [index + 1] * (7 + 20 * index), 24, 0.8 * (index % 2), index) for index in range(4)]
COMPUTE = """
import asyncio, json, sys
from pathlib import Path
from livescale.load.engine_alone import undisturbed
from livescale.load.records import Ask
asks = [Ask(**each) for each in json.loads(sys.argv[1])]
print(json.dumps(asyncio.run(undisturbed(Path("/model"), "bfloat16", asks))))
"""
# What runs in the environment of an engine that benches compare with is no part of the image.
MODULES = """
import importlib, pkgutil, livescale
for module in pkgutil.walk_packages(livescale.__path__, "livescale."):
    if not module.name.endswith(("__main__", "_peer")):
        importlib.import_module(module.name)
from livescale.services.worker.engine.kernels import compiled
import torch, ucxx
print(torch.cuda.is_available(), torch.cuda.device_count(), torch.version.cuda is not None)
"""
# No process can keep what it compiles, so whatever is not compiled costs every start.
UNCOMPILED = """
import importlib, pathlib, sys
for name in ("gateway", "worker"):
    importlib.import_module(f"livescale.services.{name}.main")
import torch
kept = {name: getattr(module, "__cached__", None) for name, module in sys.modules.items()}
print(*(name for name, path in kept.items() if isinstance(path, str) and not pathlib.Path(path).exists()))
"""


@pytest.fixture(scope="module", autouse=True)
def _image() -> None:
    if reason := why_not():
        pytest.skip(reason)


def inside(*command: str, flags: tuple[str, ...] = ()) -> str:
    """What a program says in a container that is confined as those of docker-compose.yml."""
    program, *words = command
    return docker("run", *CONFINED, *flags, f"--entrypoint={program}", IMAGE, *words)


def test_it_is_small_and_not_root_by_a_number() -> None:
    [told] = json.loads(docker("image", "inspect", IMAGE))
    assert told["Size"] <= MOST_BYTES
    assert told["Config"]["User"] == "10001:10001"
    assert inside("id", "-u").strip() == "10001"


def test_neither_compiler_nor_wheels_nor_tools_of_installation_stay() -> None:
    found = inside("sh", "-c", "command -v gcc cc pip make || true; find / -xdev -name '*.whl' 2>/dev/null || true")
    assert found.split() == []


def test_nothing_of_ours_can_be_written_by_its_user() -> None:
    """But the places of volumes, in an image that is not read-only."""
    script = "find / -xdev -writable \\( -type f -o -type d \\) 2>/dev/null | grep -v '^/proc\\|^/sys\\|^/dev' || true"
    places = docker("run", "--rm", "--entrypoint=sh", IMAGE, "-c", script).split()
    assert all(place.startswith(("/var/lib/livescale", "/tmp", "/var/tmp", "/run/lock")) for place in places), places


def test_every_module_is_imported_and_torch_finds_no_gpu() -> None:
    assert inside("python", "-c", MODULES).split()[-3:] == ["False", "0", "True"]


def test_no_module_is_compiled_at_a_start() -> None:
    assert inside("python", "-c", UNCOMPILED).split() == []


def test_kernels_are_those_of_this_cpu_and_compute_what_they_do_outside(tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_checkpoint("llama"), tmp_path / "model"))
    for path in (tmp_path, model, *model.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    asks = json.dumps([{name: getattr(ask, name) for name in ask.__struct_fields__} for ask in ASKS])
    said = inside("python", "-c", COMPUTE, asks, flags=(f"--volume={model}:/model:ro",))
    expected = asyncio.run(undisturbed(model, "bfloat16", ASKS))
    assert {int(index): tokens for index, tokens in json.loads(said).items()} == expected


def test_the_server_of_the_bus_is_in_it() -> None:
    assert inside("nats-server", "--version").startswith("nats-server: v2")
