"""The portable kernels on other kinds of CPUs, and by another compiler: the same bits.

Compiling them takes long. That the kernels of this build have the same bits is tested beside the engine, always.
"""

import os
import platform
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.worker.engine.test_bits import KNOWN

pytestmark = pytest.mark.slow

KERNELS = Path(__file__).parents[4] / "services" / "worker" / "engine" / "kernels"
PROGRAM = Path(__file__).with_name("print_digests.c")
FLAGS = ["-O3", "-ffp-contract=off", "-fno-strict-aliasing", "-pthread", f"-I{KERNELS}"]
# For a file: with sanitizers the longest takes 20 s of a CPU that may be shared by ten.
BUILD_SECONDS, RUN_SECONDS = 1_200, 1_200


def find_program(*names: str) -> str:
    """The first of these programs that is installed. Without one the test is skipped."""
    found = next((name for name in names if shutil.which(name)), None)
    if found is None:
        pytest.skip(f"{names[0]} is not installed")
    return found


def build(compiler: str, directory: Path, *flags: str) -> Path:
    """The program that prints digests, without the part for Python: compiled file by file, on all cores."""
    # A few large files take most of the time, and are not the last in this order.
    sources = sorted([PROGRAM, *(source for source in KERNELS.rglob("*.c") if source.name != "module.c")], reverse=True)
    command, made = [compiler, *FLAGS, *flags], directory / "print_digests"

    def compile_one(source: Path) -> Path:
        began, compiled = time.monotonic(), directory / f"{source.stem}.o"
        whole = [*command, "-c", str(source), "-o", str(compiled)]
        subprocess.run(whole, check=True, capture_output=True, timeout=BUILD_SECONDS)
        sys.stderr.write(f"{source.name}: compiled in {time.monotonic() - began:.0f} s\n")
        return compiled

    with ThreadPoolExecutor(os.cpu_count()) as cores:
        objects = [str(compiled) for compiled in cores.map(compile_one, sources)]
    subprocess.run([*command, *objects, "-o", str(made), "-lm"], check=True, capture_output=True, timeout=BUILD_SECONDS)
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
