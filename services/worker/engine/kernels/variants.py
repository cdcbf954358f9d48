"""The compiled kernels as Python sees them, and the choice of one of their variants.

kernels.h describes the structs whose addresses they are given.
"""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Literal, Protocol, cast

from livescale.shared.messages.parameters import DType

Pointer = int
KernelsName = Literal["auto", "compiled", "amx", "avx512_bf16", "portable", "amx-emulated", "torch"]
VariantName = Literal["amx", "avx512_bf16", "portable", "amx-emulated"]
TORCH, FLASHINFER = "torch", "flashinfer"
# What `auto` tries, best first. The last one runs on every CPU.
PREFERRED: tuple[VariantName, ...] = ("amx", "avx512_bf16", "portable")
VARIANTS: tuple[VariantName, ...] = (*PREFERRED, "amx-emulated")
INTERFACE = 7  # as kernels.h has it
TYPES: dict[DType, int] = {"bfloat16": 0, "float32": 1}

# torch's variable for its own vector instructions: so one CPU stands for another.
CAPABILITY = "ATEN_CPU_CAPABILITY"
LEVELS_UP_TO = {"avx512": ("avx512", "avx2", "plain"), "avx2": ("avx2", "plain"), "default": ("plain",)}


class Kernels(Protocol):
    """One variant of the kernels, on some threads. Arguments are numbers and addresses; `type` is one of TYPES."""

    def multiply(
        self, type: int, linear: Pointer, rows: Pointer, residual: Pointer, out: Pointer, row_count: int, /
    ) -> None:
        """`[row, in]` -> `[row, out]`, plus `residual` `[row, out]` unless that is 0."""

    def rms_norm(
        self,
        type: int,
        hidden: Pointer,
        weight: Pointer,
        out: Pointer,
        rows: int,
        size: int,
        epsilon: float,
        offset: float,
        /,
    ) -> None:
        """RMSNorm of each row, times `weight` plus `offset`."""

    def layer_norm(
        self,
        type: int,
        hidden: Pointer,
        weight: Pointer,
        bias: Pointer,
        out: Pointer,
        rows: int,
        size: int,
        epsilon: float,
        /,
    ) -> None:
        """LayerNorm of each row, times `weight` plus `bias`."""

    def gelu(self, type: int, hidden: Pointer, out: Pointer, rows: int, size: int, /) -> None:
        """GELU of each number of `[row, size]`, by the error function."""

    def silu_times(self, type: int, gate_up: Pointer, out: Pointer, rows: int, size: int, /) -> None:
        """`[row, 2, size]` -> `[row, size]`: SiLU of the first half, times the second."""

    def gelu_times(self, type: int, gate_up: Pointer, out: Pointer, rows: int, size: int, /) -> None:
        """The same with GELU, by its approximation with a tangent."""

    def attend(
        self,
        type: int,
        projected: Pointer,
        stride: int,
        out: Pointer,
        runs: Pointer,
        run_count: int,
        attention: Pointer,
        /,
    ) -> None:
        """Rotate queries and keys of all rows, put keys and values into the cache, attend."""

    def run_layer(
        self,
        type: int,
        layer: Pointer,
        hidden: Pointer,
        rows: int,
        runs: Pointer,
        run_count: int,
        adapters: Pointer,
        adapter_count: int,
        epsilon: float,
        /,
    ) -> None:
        """Run a whole layer on `hidden` `[row, hidden]`, in place, with what adapters add for some of the rows."""

    def run_experts(
        self, type: int, experts: Pointer, rows: Pointer, residual: Pointer, out: Pointer, row_count: int, /
    ) -> None:
        """Run the experts of each row: `[row, hidden]` -> `[row, hidden]`, plus `residual` unless that is 0."""

    def multiply_heads(
        self,
        type: int,
        maps: Pointer,
        heads: int,
        rows: Pointer,
        row_stride: int,
        head_stride: int,
        out: Pointer,
        out_stride: int,
        row_count: int,
        /,
    ) -> None:
        """Multiply each head of each row by the linear map of that head, into `[row, head, out]`."""

    def lay_out(self, type: int, matrix: Pointer, outputs: int, inputs: int, panels: Pointer, /) -> None:
        """Lay a matrix `[out, in]` out in `panels`, which must be zero."""

    def likelihoods(self, type: int, rows: Pointer, row_count: int, /) -> None:
        """Tell how likely tokens are by rows of logits. The bits are the same for all variants."""

    def make_rope_tables(
        self, type: int, frequencies: Pointer, half: int, positions: int, cosines: Pointer, sines: Pointer, /
    ) -> None:
        """Fill tables `[position, 2 * half]` of cosines and signed sines; frequencies are float32."""

    def digest(self) -> str:
        """16 digits that are the same for kernels with the same bits."""

    def __hash__(self) -> int: ...


class Compiled(Protocol):
    """The C extension module, as far as Python uses it."""

    LAYER_ROWS: int  # that `run_layer` computes at a time, and that a run has at most
    PANEL: int  # outputs
    INPUTS: int  # of which the inputs of a panel are a multiple
    INTERFACE: int
    __file__: str

    def __hash__(self) -> int: ...

    def Kernels(self, variant: str, level: str, threads: int) -> Kernels:
        """Make a variant. Raises ValueError, which says what this CPU or Linux does not have."""

    def levels(self) -> list[str]:
        """The levels of vector instructions that this CPU has, best first."""

    def mask_logits(self, type: int, row: Pointer, mask: Pointer, size: int, /) -> None:
        """Give minus infinity to the logits whose bit in the mask is 0, the lowest bit first."""


def double_bits(*values: float) -> tuple[int, ...]:
    """Doubles as kernels read them where they are given arrays of 64-bit integers."""
    return struct.unpack(f"{len(values)}q", struct.pack(f"{len(values)}d", *values))


def find_compiled() -> Compiled | None:
    """The C extension module; None where there was no C compiler at installation.

    Raises RuntimeError if it was compiled from other sources: it would read what it is given wrongly, or beyond it.
    """
    try:
        compiled = cast(Compiled, import_module("livescale.services.worker.engine.kernels.compiled"))
    except ImportError:
        return None
    if getattr(compiled, "INTERFACE", None) != INTERFACE:
        raise RuntimeError(f"{compiled.__file__} was compiled from other sources: install livescale again")
    return compiled


def find_level(compiled: Compiled) -> str:
    """The best level of vector instructions that this CPU has, or stands for."""
    allowed = LEVELS_UP_TO.get(os.environ.get(CAPABILITY, ""), LEVELS_UP_TO["avx512"])
    return next(level for level in compiled.levels() if level in allowed)


def open_variant(name: VariantName, threads: int = 1) -> Kernels:
    """Make a variant on so many threads. Raises ValueError, with the reason, where it cannot be had."""
    compiled = find_compiled()
    if compiled is None:
        raise ValueError("the kernels were not compiled at installation: install a C compiler, then livescale again")
    level = find_level(compiled)
    if name in ("amx", "avx512_bf16") and level != "avx512":
        if "avx512" not in compiled.levels():
            raise ValueError("this CPU has no AVX-512")
        raise ValueError(f"{CAPABILITY} is {os.environ[CAPABILITY]}, which excludes AVX-512")
    return _make(compiled, name, level, threads)


@cache  # they have no state, and what is known of them is known of all
def _make(compiled: Compiled, name: VariantName, level: str, threads: int) -> Kernels:
    return compiled.Kernels(name, level, threads)


@dataclass(frozen=True)
class KernelChoice:
    """The kernels that a worker uses, None for torch's own. `passed_over` names better ones, and why it cannot have
    them."""

    variant: str
    kernels: Kernels | None
    passed_over: tuple[str, ...] = ()


def choose_kernels(asked: KernelsName, threads: int = 1) -> KernelChoice:
    """Choose the kernels for what was asked. Raises ValueError where they cannot be had; `auto` and `torch` always
    can."""
    if asked == "torch":
        return KernelChoice(TORCH, None)
    wanted: Sequence[VariantName] = PREFERRED if asked in ("auto", "compiled") else (cast(VariantName, asked),)
    reasons: list[str] = []
    for name in wanted:
        try:
            return KernelChoice(name, open_variant(name, threads), tuple(reasons))
        except ValueError as error:
            reasons.append(f"{name}: {error}")
    if asked == "auto":
        return KernelChoice(TORCH, None, tuple(reasons))
    raise ValueError(f"kernels: {asked} cannot be used here: {'; '.join(reasons)}. Choose --kernels auto")
