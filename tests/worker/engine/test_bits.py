"""The name of the bits: computed from what kernels make of fixed inputs, the same for the same bits and for no
others."""

import os
import time
from itertools import combinations
from pathlib import Path
from typing import Literal

import pytest
import torch

from livescale.services.worker.engine.bits import name_of_bits, torch_digest
from livescale.services.worker.engine.contract import GpuFeatures
from livescale.services.worker.engine.kernels.variants import (
    CAPABILITY,
    LEVELS_UP_TO,
    VARIANTS,
    KernelChoice,
    find_compiled,
    open_variant,
)
from livescale.services.worker.engine.runner import EngineRunner
from tests.worker.engine.models import VARIANTS_HERE, VARIANTS_MISSING, needs_kernels

# On every CPU and by every compiler. Where kernels come to give other bits on purpose, write what comes of it here:
# workers of two releases are not in one pool then.
KNOWN = {
    "amx": "3336c66950d12b47",
    "amx-emulated": "3336c66950d12b47",
    "avx512_bf16": "9b0ec97d08fdcdc1",
    "portable": "78c86efbc9021762",
}
# What /proc/cpuinfo calls the instructions that a variant takes.
FLAGS = {"amx": {"amx_bf16", "amx_tile"}, "avx512_bf16": {"avx512_bf16"}, "portable": set(), "amx-emulated": set()}
DIGEST_SECONDS = 0.3
# All variants share out their work in the same way, and three threads on two busy cores wait for each other a thousand
# times: one variant has three of them, the others where there is time.
DIGESTS = [
    pytest.param(variant, threads, marks=[pytest.mark.slow] if threads == 3 and variant != "portable" else [])
    for variant in VARIANTS
    for threads in (1, 2, 3)
]


def named(variant: str, threads: int) -> str:
    return name_of_bits(KernelChoice(variant, open_variant(variant, threads)), "cpu")  # type: ignore[arg-type]


@needs_kernels
def test_no_variant_that_this_cpu_can_run_is_left_out() -> None:
    flags: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            flags = set(line.partition(":")[2].split())
    if LEVELS_UP_TO.get(os.environ.get(CAPABILITY, ""), ("avx512",))[0] != "avx512":  # it stands for an older one
        flags = {flag for flag in flags if not flag.startswith(("avx512", "amx"))}
    possible = {variant for variant, needed in FLAGS.items() if needed <= flags}
    assert set(VARIANTS_HERE) == possible, VARIANTS_MISSING


@needs_kernels
@pytest.mark.parametrize(("variant", "threads"), DIGESTS)
def test_a_variant_gives_the_bits_that_it_always_gave_on_any_number_of_threads(variant: str, threads: int) -> None:
    if variant in VARIANTS_MISSING:
        pytest.skip(f"{variant}: {VARIANTS_MISSING[variant]}")
    assert open_variant(variant, threads).digest() == KNOWN[variant]  # type: ignore[arg-type]


@needs_kernels
@pytest.mark.parametrize("variant", ["portable", "amx-emulated"])
def test_every_level_of_vector_instructions_gives_the_same_bits(variant: str) -> None:
    compiled = find_compiled()
    assert compiled is not None
    assert {compiled.Kernels(variant, level, 1).digest() for level in compiled.levels()} == {KNOWN[variant]}


@pytest.mark.skipif("avx512_bf16" not in VARIANTS_HERE, reason="this CPU has no AVX512-BF16")
@pytest.mark.parametrize("means", ["dots", "fma"])
def test_products_by_either_instruction_have_the_same_bits(means: str) -> None:
    compiled = find_compiled()
    assert compiled is not None
    assert compiled.Kernels("avx512_bf16", means, 1).digest() == KNOWN["avx512_bf16"]


@needs_kernels
def test_settings_that_have_other_bits_have_other_names_and_those_that_have_the_same_have_one() -> None:
    names = {variant: named(variant, 1) for variant in VARIANTS_HERE}
    for one, other in combinations(names, 2):
        assert (names[one] == names[other]) == (KNOWN[one] == KNOWN[other]), (one, other)
    assert named("portable", 2) == names["portable"]
    assert KNOWN["amx"] == KNOWN["amx-emulated"]
    assert named("amx-emulated", 1) == f"amx-{KNOWN['amx']}"


def test_torchs_bits_are_named_by_its_version_its_instructions_and_what_comes_of_them() -> None:
    name = name_of_bits(KernelChoice("torch", None), "cpu")
    kind = torch.backends.cpu.get_cpu_capability()
    assert name == f"torch-{torch.__version__}-{kind}-{torch_digest('cpu')}"
    assert torch_digest("cpu") == torch_digest("cpu")
    assert name_of_bits(KernelChoice("torch", None), "cpu", flashinfer=True).startswith("flashinfer-")


@pytest.mark.parametrize("variant", ["torch", pytest.param("portable", marks=needs_kernels)])
def test_the_name_is_there_in_time(variant: Literal["torch", "portable"]) -> None:
    for _ in range(2):  # the first time for what torch does only once
        chosen = KernelChoice(variant, None if variant == "torch" else open_variant(variant, 1))
        began = time.thread_time()
        name_of_bits(chosen, "cpu")
    assert time.thread_time() - began < DIGEST_SECONDS


async def test_a_runner_says_what_it_computes_with() -> None:
    runner = EngineRunner(1 << 20, 16, kernels=KernelChoice("torch", None), on_gpu=GpuFeatures())
    try:
        assert (await runner.kernels_name() or "").startswith("torch-")
    finally:
        await runner.close()
