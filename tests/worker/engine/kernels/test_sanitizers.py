"""The kernels under compilers' sanitizers: what they read and write is theirs, they do nothing that C leaves undefined,
and no two threads meet at the same memory.

Compiling them takes two minutes of CPU time for each of both.
"""

import sys
from pathlib import Path

import pytest

from tests.worker.engine.kernels.test_other_cpus import build, digests, find_program
from tests.worker.engine.models import VARIANTS_HERE, VARIANTS_MISSING
from tests.worker.engine.test_bits import KNOWN

pytestmark = pytest.mark.slow

# How the variant adds products takes the place of its level.
LEVELS = {"avx512_bf16": ("dots", "fma")}


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_sanitizers_find_nothing_and_the_bits_are_the_same(sanitizers: str, tmp_path: Path) -> None:
    flags = "-O1", "-g1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"
    program = build(find_program("gcc"), tmp_path, *flags)
    for variant in VARIANTS_HERE:
        sys.stderr.write(f"{variant} with {sanitizers}\n")
        made = digests(program, variant, *LEVELS.get(variant, ()))
        assert set().union(*made.values()) == {KNOWN[variant]}, (variant, VARIANTS_MISSING)
