"""The portable kernels on other kinds of CPUs, and by another compiler: the same bits.

Compiling them takes long. That the kernels of this build have the same bits is tested beside the engine, always.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.worker.engine.test_bits import KNOWN

pytestmark = pytest.mark.slow

KERNELS = Path(__file__).parents[4] / "services" / "worker" / "engine" / "kernels"
PROGRAM = Path(__file__).with_name("print_digests.c")
FLAGS = ["-O3", "-ffp-contract=off", "-fno-strict-aliasing", "-pthread", f"-I{KERNELS}"]


def digests(compiler: str, directory: Path, *runner: str) -> set[str]:
    """What the program prints, compiled without the part for Python and run by `runner`."""
    for program in (compiler, *runner[:1]):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    sources = [str(source) for source in KERNELS.rglob("*.c") if source.name != "module.c"]
    made = directory / "print_digests"
    command = [compiler, *FLAGS, str(PROGRAM), *sources, "-o", str(made), "-lm", *(["-static"] if runner else [])]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    done = subprocess.run([*runner, str(made)], check=True, capture_output=True, text=True, timeout=120)
    return {line.split()[2] for line in done.stdout.splitlines()}


def test_arm64_has_the_same_bits(tmp_path: Path) -> None:
    assert digests("aarch64-linux-gnu-gcc", tmp_path, "qemu-aarch64") == {KNOWN["portable"]}


def test_another_compiler_makes_the_same_bits(tmp_path: Path) -> None:
    assert digests("clang" if shutil.which("clang") else "clang-14", tmp_path) == {KNOWN["portable"]}
