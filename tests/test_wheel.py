"""The wheel and the source archive: what is in them, and that it runs from an empty folder without a compiler."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import threading
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.worker.engine.test_bits import KNOWN

ROOT = Path(__file__).parent.parent
SOURCES = ("services", "shared", "load", "livescale")
FILES = ("pyproject.toml", "MANIFEST.in", "constraints.txt", "README.md", "LICENSE")
KERNEL_FOLDER = Path("services/worker/engine/kernels")
DATA = {
    "livescale/py.typed",
    "livescale/load/claims/reviewed.yaml",
    "livescale/shared/latencies.yaml",
    "livescale/shared/systems.yaml",
    *(f"livescale/{path.relative_to(ROOT)}" for path in ROOT.glob("shared/topologies/*.yaml")),
}
LARGEST_WHEEL = 2_500_000
BUILD_SECONDS, COMMAND_SECONDS = 300, 120
SHOW_KERNELS = """
import livescale
from livescale.services.worker.engine.kernels.variants import choose_kernels
chosen = choose_kernels("auto")
print(livescale.__file__, chosen.variant, chosen.kernels and chosen.kernels.digest())
"""


def run(*words: str | Path, cwd: Path, env: Mapping[str, str] | None = None, seconds: float = COMMAND_SECONDS) -> str:
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def copy_sources(to: Path) -> Path:
    """The tree as a fresh clone has it: with its links, and with nothing that was built."""
    for name in SOURCES:
        built = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / name, to / name, symlinks=True, ignore=built)
    for name in FILES:
        shutil.copy(ROOT / name, to)
    return to


def build_archive(sources: Path, to: Path) -> Path:
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(to)!r})"
    run(sys.executable, "-c", build, cwd=sources)
    [archive] = to.glob("*.tar.gz")
    return archive


def build_wheel(archive: Path, to: Path, **env: str) -> Path:
    """The wheel that pip builds from the source archive alone, without the network."""
    pip = (sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-cache-dir", "--no-index")
    flags = ("--no-deps", "--no-build-isolation", "-w", to)
    run(*pip, *flags, archive, cwd=to, env={**os.environ, **env}, seconds=BUILD_SECONDS)
    [wheel] = to.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_archive(copy_sources(tmp_path_factory.mktemp("sources")), tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(archive, tmp_path_factory.mktemp("wheel"))


def install(wheel: Path, directory: Path) -> Path:
    """An environment with the wheel in it and the packages of this one, but without this tree. Returns its programs."""
    run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=directory.parent)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", directory / "bin" / "python")
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=directory.parent)
    [packages] = directory.glob("lib/python*/site-packages")
    # Files of links in a folder that is named so are not read: the tree is not found by them.
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory / "bin"


def installed_env(programs: Path, home: Path) -> dict[str, str]:
    """An environment without a compiler, without this tree, and with a NATS server."""
    (home / "bin").mkdir(exist_ok=True)
    server = shutil.which("nats-server", path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]))
    if server is None:
        pytest.skip("nats-server is not installed")
    (home / "bin" / "nats-server").symlink_to(server)
    kept = {name: value for name, value in os.environ.items() if name.startswith(("LIVESCALE_", "LC_", "LANG"))}
    return {**kept, "PATH": f"{programs}:{home / 'bin'}", "CC": "/bin/false", "HOME": str(home)}


def tree_modules() -> set[str]:
    found = [path for name in ("services", "shared", "load") for path in (ROOT / name).rglob("*.py")]
    return {"livescale/__init__.py", *(f"livescale/{path.relative_to(ROOT)}" for path in found)}


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as file:
        return [name for name in file.namelist() if not name.endswith("/")]


def test_every_file_of_the_kernels_is_named_for_the_source_archive() -> None:
    [module] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    for key, ending in (("sources", "c"), ("depends", "h")):
        there = {str(path.relative_to(ROOT)) for path in (ROOT / KERNEL_FOLDER).rglob(f"*.{ending}")}
        assert set(module[key]) == there


@pytest.mark.slow
def test_the_archive_has_the_sources_and_no_tests(archive: Path) -> None:
    with tarfile.open(archive) as file:
        inside = {name.partition("/")[2] for name in file.getnames()}
    assert {str(path.relative_to(ROOT)) for path in (ROOT / KERNEL_FOLDER).rglob("*.[ch]")} <= inside
    assert tree_modules() | DATA | set(FILES) <= inside
    assert not [name for name in inside if name.startswith(("tests", "docs"))]


@pytest.mark.slow
def test_a_wheel_holds_one_package_with_its_data(wheel: Path) -> None:
    inside = names(wheel)
    assert len(inside) == len(set(inside))
    tops = {name.partition("/")[0] for name in inside}
    [info] = [top for top in tops if top.endswith(".dist-info")]
    assert tops == {"livescale", info}
    kernels = {name for name in inside if name.endswith(".so")}
    assert {name for name in inside if name.startswith("livescale/")} - kernels == tree_modules() | DATA
    assert {f"{info}/licenses/LICENSE", f"{info}/entry_points.txt"} <= set(inside)
    assert wheel.stat().st_size < LARGEST_WHEEL


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_wheel_has_kernels_for_every_later_python(wheel: Path) -> None:
    assert "-cp311-abi3-linux_" in wheel.name
    assert [name for name in names(wheel) if name.endswith(".so")] == [f"livescale/{KERNEL_FOLDER}/compiled.abi3.so"]


@pytest.fixture
def server(wheel: Path, tmp_path: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """`livescale up` of the wheel in an empty folder, with a made checkpoint. Its URL and its environment."""
    programs = install(wheel, tmp_path / "venv")
    (tmp_path / "empty").mkdir()
    env = installed_env(programs, tmp_path)
    livescale, folder = programs / "livescale", tmp_path / "empty"
    assert run(livescale, "--version", cwd=folder, env=env).startswith("livescale, version ")
    assert "livescale up" in run(livescale, "--help", cwd=folder, env=env)
    run(livescale, "make-model", "made", "--family", "llama", "--size", "tiny", cwd=folder, env=env)
    words: Sequence[str | Path] = (livescale, "up", "--model", "made=made", "--workers", "1", "--port", "0")
    with (tmp_path / "log").open("w") as log:
        up = subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
        limit = threading.Timer(COMMAND_SECONDS, up.kill)
        limit.start()
        try:
            assert up.stdout is not None
            ready = up.stdout.readline()
            assert ready, (tmp_path / "log").read_text()[-3000:]
            limit.cancel()
            yield json.loads(ready)["url"], env
        finally:
            limit.cancel()
            up.send_signal(signal.SIGINT)
            up.communicate(timeout=COMMAND_SECONDS)


@pytest.mark.slow
@pytest.mark.system
def test_an_installed_wheel_serves_from_an_empty_folder(
    wheel: Path, server: tuple[str, Mapping[str, str]], tmp_path: Path
) -> None:
    url, env = server
    body = json.dumps({"model": "made", "prompt": "Once", "max_tokens": 4, "ignore_eos": True}).encode()
    asked = Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    with urlopen(asked, timeout=COMMAND_SECONDS) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 4
    place, variant, digest = run("python", "-c", SHOW_KERNELS, cwd=tmp_path / "empty", env=env).split()
    assert Path(place).is_relative_to(tmp_path / "venv")
    assert digest == (KNOWN[variant] if any(name.endswith(".so") for name in names(wheel)) else "None")


@pytest.mark.slow
def test_a_wheel_without_a_compiler_computes_with_torch(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "wheel").mkdir()
    wheel = build_wheel(archive, tmp_path / "wheel", CC="/bin/false")
    assert not [name for name in names(wheel) if name.endswith(".so")]
    programs = install(wheel, tmp_path / "venv")
    place, variant, _ = run("python", "-c", SHOW_KERNELS, cwd=tmp_path, env=installed_env(programs, tmp_path)).split()
    assert Path(place).is_relative_to(tmp_path / "venv")
    assert variant == "torch"
