"""AMX: what the instruction computes is what `amx-emulated` computes on every CPU; and nothing of it stays behind."""

import ctypes
import mmap
import os
import random
import subprocess
import sys
from array import array
from collections.abc import Callable

import pytest
import torch

from livescale.services.worker.engine.compiled_layer import numbers_of
from livescale.services.worker.engine.kernels.variants import Kernels, choose_kernels, open_variant
from livescale.services.worker.engine.matrices import CompiledLinear
from livescale.shared.messages.parameters import LayerKind
from tests.worker.engine.models import VARIANTS_HERE, VARIANTS_MISSING, needs_kernels

needs_amx = pytest.mark.skipif("amx" not in VARIANTS_HERE, reason=f"amx: {VARIANTS_MISSING.get('amx', '')}")
BFLOAT16 = 0
SLOTS = 640
ATTENTION_KINDS = (LayerKind(), LayerKind(window=100), LayerKind(attention_scale=0.1, score_cap=30.0))


def any_bits(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Every bfloat16 alike: most of them far too large or too small for a sum, some infinite, some no numbers."""
    bits = torch.randint(-(2**15), 2**15, shape, generator=generator)
    return bits.to(torch.int16).view(torch.bfloat16)


def tiny(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Around the square root of the least normal float32, so that products and sums are denormal, or nearly."""
    exponents = torch.randint(-68, -58, shape, generator=generator)
    return (torch.randn(shape, generator=generator) * 2.0**exponents).bfloat16()


def boundary(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Powers of two and their neighbours whose products are the least normal float32, or half a bit beside it; denormal
    numbers, and zeros of both signs."""
    values = torch.tensor([2.0**-63, 2.0**-64, -(2.0**-63), 2.0**-62 * 0.99609375, 2.0**-127, -(2.0**-130), 0.0, -0.0])
    return values[torch.randint(0, len(values), shape, generator=generator)].bfloat16()


def plain(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator).bfloat16()


KINDS = [any_bits, tiny, boundary, plain]
Make = Callable[..., torch.Tensor]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


@needs_amx
@pytest.mark.parametrize("make", KINDS)
def test_matrices_have_the_same_bits_as_emulated(make: Make) -> None:
    chance, generator = random.Random(1), torch.Generator().manual_seed(1)
    for _ in range(60):
        rows, inputs, outputs = chance.randint(1, 70), chance.randint(1, 700), chance.randint(1, 200)
        weight, given = make(generator, outputs, inputs), make(generator, rows, inputs)
        residual, bias = make(generator, rows, outputs), make(generator, outputs)
        made = []
        for kernels in (VARIANTS_HERE["amx"], VARIANTS_HERE["amx-emulated"]):
            linear = CompiledLinear(kernels, {"m.weight": weight, "m.bias": bias}, "m")
            made.append((linear(given), linear.plus(given, residual)))
        assert same_bits(made[0][0], made[1][0]), (rows, inputs, outputs)
        assert same_bits(made[0][1], made[1][1]), (rows, inputs, outputs)


@needs_amx
@pytest.mark.parametrize("make", KINDS)
def test_attention_norms_and_gates_have_the_same_bits_as_emulated(make: Make) -> None:
    chance = random.Random(2)
    for seed in range(25):
        group, kv_heads, head_dim = chance.randint(1, 9), chance.randint(1, 3), 2 * chance.randint(1, 70)
        rows = chance.randint(1, 100)
        begin = 8 * chance.randint(0, (SLOTS - 16 - rows) // 8)
        heads, kind, made = (group, kv_heads, head_dim), ATTENTION_KINDS[seed % len(ATTENTION_KINDS)], []
        for name in ("amx", "amx-emulated"):
            generator = torch.Generator().manual_seed(seed)
            made.append(rows_through(VARIANTS_HERE[name], make, generator, rows, begin, heads, kind))
        for one, other in zip(*made, strict=True):
            assert same_bits(one, other), (seed, group, kv_heads, head_dim, rows, begin)


def rows_through(
    kernels: Kernels,
    make: Make,
    generator: torch.Generator,
    rows: int,
    begin: int,
    heads: tuple[int, int, int],
    kind: LayerKind,
) -> list[torch.Tensor]:
    group, kv_heads, head_dim = heads
    keys, values = (make(generator, kv_heads, SLOTS, head_dim) for _ in range(2))
    cosines, sines = (plain(generator, SLOTS, head_dim) for _ in range(2))
    stride = (group + 2) * kv_heads * head_dim
    given, out = make(generator, rows, stride), torch.zeros(rows, group * kv_heads * head_dim, dtype=torch.bfloat16)
    caches, tables = (keys.data_ptr(), values.data_ptr()), (cosines.data_ptr(), sines.data_ptr())
    # What kernels.h adds behind these is zero, which stands for none.
    attention = array("q", (*caches, SLOTS, kv_heads, group, head_dim, 0, *tables, *numbers_of(kind), *[0] * 8))
    run = array("q", (rows, 16, begin, 0))
    addresses = run.buffer_info()[0], 1, attention.buffer_info()[0]
    kernels.attend(BFLOAT16, given.data_ptr(), stride, out.data_ptr(), *addresses)
    normed, gated = torch.zeros_like(given), torch.zeros(rows, stride // 2, dtype=torch.bfloat16)
    weight = make(generator, stride)
    kernels.rms_norm(BFLOAT16, given.data_ptr(), weight.data_ptr(), normed.data_ptr(), rows, stride, 1e-5, 0.0)
    kernels.silu_times(BFLOAT16, given.data_ptr(), gated.data_ptr(), rows, stride // 2)
    return [out, keys, values, normed, gated]


def control_register() -> int:
    """MXCSR of this thread, in the environment of floats that the C library tells of."""
    environment = (ctypes.c_uint32 * 8)()
    ctypes.CDLL("libm.so.6").fegetenv(ctypes.byref(environment))
    return environment[7]


@needs_kernels
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="MXCSR is a register of x86-64")
@pytest.mark.parametrize("variant", ["amx", "avx512_bf16", "portable", "amx-emulated"])
def test_the_arithmetic_of_the_caller_changes_no_bit_and_is_left_as_it_was(variant: str) -> None:
    if variant in VARIANTS_MISSING:
        pytest.skip(f"{variant}: {VARIANTS_MISSING[variant]}")
    before, right = control_register(), VARIANTS_HERE[variant].digest()
    assert torch.set_flush_denormal(True)
    try:
        flushing = control_register()
        assert flushing & 0x8040 == 0x8040
        assert VARIANTS_HERE[variant].digest() == right
        assert control_register() == flushing
    finally:
        torch.set_flush_denormal(False)
    assert VARIANTS_HERE[variant].digest() == right
    assert control_register() == before


@needs_amx
def test_tiles_are_released() -> None:
    """XGETBV tells which state of this thread is in use (XINUSE); bit 18 is that of tiles."""
    code = bytes((0xB9, 1, 0, 0, 0, 0x0F, 0x01, 0xD0, 0xC3))  # mov ecx, 1; xgetbv; ret
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as memory:
        memory.write(code)
        start = ctypes.c_char.from_buffer(memory)
        in_use = ctypes.CFUNCTYPE(ctypes.c_uint32)(ctypes.addressof(start))
        VARIANTS_HERE["amx"].digest()
        state = in_use()
        del start
    assert not state >> 18 & 1


# A filter of system calls (seccomp) that refuses arch_prctl(ARCH_REQ_XCOMP_PERM), as a sandbox might.
REFUSING = """
import ctypes, struct, sys
from livescale.services.worker.engine.kernels.variants import choose_kernels

LOAD, EQUAL, RETURN, ALLOW, REFUSE = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050001
steps = ((LOAD, 0, 0, 0), (EQUAL, 0, 3, 158), (LOAD, 0, 0, 16), (EQUAL, 0, 1, 0x1023), (RETURN, 0, 0, REFUSE),
         (RETURN, 0, 0, ALLOW))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
chosen = choose_kernels("auto")
print(chosen.variant, chosen.passed_over)
try:
    choose_kernels("amx")
except ValueError as error:
    print(error)
"""


@needs_amx
def test_where_linux_refuses_the_state_of_tiles_the_next_variant_is_taken_and_a_forced_one_says_why() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "LIVESCALE_KERNELS"}
    done = subprocess.run(
        [sys.executable, "-c", REFUSING], check=True, capture_output=True, text=True, timeout=60, env=environment
    )
    chosen, error = done.stdout.splitlines()
    assert chosen.startswith("avx512_bf16 ('amx: Linux refuses the state of AMX tiles to this process: Operation not")
    assert error.startswith("kernels: amx cannot be used here: amx: Linux refuses the state of AMX tiles")


class Levels:
    """The compiled kernels as they are on a CPU with these levels of vector instructions."""

    def __init__(self, *levels: str) -> None:
        self.levels = lambda: list(levels)
        self.Kernels = lambda variant, level, threads: (variant, level)


def kernels_on(monkeypatch: pytest.MonkeyPatch, *levels: str) -> None:
    monkeypatch.setattr("livescale.services.worker.engine.kernels.variants.find_compiled", lambda: Levels(*levels))


def test_a_cpu_may_stand_for_a_lesser_one(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels_on(monkeypatch, "avx512", "avx2", "plain")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert (choose_kernels("auto").variant, choose_kernels("auto").kernels) == ("portable", ("portable", "avx2"))
    with pytest.raises(ValueError, match="ATEN_CPU_CAPABILITY is avx2, which excludes AVX-512"):
        open_variant("avx512_bf16")


@pytest.mark.parametrize("capability", ["", "avx2", "avx512"])
def test_a_cpu_without_avx512_takes_the_portable_kernels(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    kernels_on(monkeypatch, "avx2", "plain")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    if capability:
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
    chosen = choose_kernels("auto")
    assert (chosen.variant, chosen.kernels) == ("portable", ("portable", "avx2"))
    assert chosen.passed_over == ("amx: this CPU has no AVX-512", "avx512_bf16: this CPU has no AVX-512")
    with pytest.raises(ValueError, match="kernels: amx cannot be used here: amx: this CPU has no AVX-512"):
        choose_kernels("amx")


def test_without_a_compiler_torch_computes_and_what_is_forced_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livescale.services.worker.engine.kernels.variants.find_compiled", lambda: None)
    chosen = choose_kernels("auto")
    assert (chosen.variant, chosen.kernels) == ("torch", None)
    assert "install a C compiler" in chosen.passed_over[0]
    for asked in ("compiled", "portable"):
        with pytest.raises(ValueError, match=rf"kernels: {asked} cannot be used here: .* C compiler"):
            choose_kernels(asked)
