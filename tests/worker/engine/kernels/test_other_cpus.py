"""The portable kernels on other kinds of CPUs, and by another compiler: the same bits.

Compiling them takes long. That the kernels of this build have the same bits is tested beside the engine, always.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.worker.engine.test_bits import KNOWN

pytestmark = pytest.mark.slow

KERNELS = Path(__file__).parents[4] / "services" / "worker" / "engine" / "kernels"
PROGRAM = Path(__file__).with_name("print_digests.c")
FLAGS = ["-O3", "-ffp-contract=off", "-fno-strict-aliasing", "-pthread", f"-I{KERNELS}"]
BUILD_SECONDS, RUN_SECONDS = 600, 600


def find_program(*names: str) -> str:
    """The first of these programs that is installed. Without one the test is skipped."""
    found = next((name for name in names if shutil.which(name)), None)
    if found is None:
        pytest.skip(f"{names[0]} is not installed")
    return found


def build(compiler: str, directory: Path, *flags: str) -> Path:
    """The program that prints digests, compiled without the part for Python."""
    sources = [str(source) for source in KERNELS.rglob("*.c") if source.name != "module.c"]
    made = directory / "print_digests"
    command = [compiler, *FLAGS, *flags, str(PROGRAM), *sources, "-o", str(made), "-lm"]
    subprocess.run(command, check=True, capture_output=True, timeout=BUILD_SECONDS)
    return made


def digests(*command: str | Path) -> dict[str, set[str]]:
    """The digests that the program prints, by level of vector instructions."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=RUN_SECONDS)
    found: dict[str, set[str]] = {}
    for level, _, digest in (line.split() for line in done.stdout.splitlines()):
        found.setdefault(level, set()).add(digest)
    return found


@pytest.fixture(scope="module")
def by_clang(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(find_program("clang", "clang-14"), tmp_path_factory.mktemp("clang"), "-static")


def test_arm64_has_the_same_bits(tmp_path: Path) -> None:
    emulator = find_program("qemu-aarch64")
    program = build(find_program("aarch64-linux-gnu-gcc"), tmp_path, "-static")
    assert digests(emulator, program) == {"plain": {KNOWN["portable"]}}


def test_another_compiler_makes_the_same_bits(by_clang: Path) -> None:
    assert set().union(*digests(by_clang).values()) == {KNOWN["portable"]}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the compiler of this machine makes no programs for x86-64")
def test_x86_64_without_avx2_has_the_same_bits_by_plain_instructions(by_clang: Path) -> None:
    emulator = find_program("qemu-x86_64")
    assert digests(emulator, "-cpu", "Nehalem", by_clang) == {"plain": {KNOWN["portable"]}}
