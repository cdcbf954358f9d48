"""The kernels in C beside this file as Python sees them. Tensors are given by their addresses; all are bfloat16."""

from importlib import import_module
from typing import Literal, Protocol, cast

Address = int
KernelsName = Literal["auto", "compiled", "torch"]
COMPILED, TORCH, FLASHINFER = "avx512_bf16", "torch", "flashinfer"


class Kernels(Protocol):
    """They are compiled at installation where there is a compiler."""

    @property
    def BITS(self) -> int:
        """Another number where results have other bits."""

    @property
    def LAYER_ROWS(self) -> int:
        """So many rows `run_layer` computes at a time, and a run has at most."""

    def __hash__(self) -> int: ...

    def supported(self) -> bool:
        """Whether this CPU has what they need, AVX512-BF16."""

    def rms_norm(
        self, hidden: Address, weight: Address, out: Address, rows: int, size: int, epsilon: float, /
    ) -> None: ...

    def silu_times(self, gate_up: Address, out: Address, rows: int, size: int, /) -> None: ...

    def multiply(
        self,
        matrix: Address,
        bias: Address,
        inputs: int,
        outputs: int,
        span: int,
        rows: Address,
        residual: Address,
        out: Address,
        row_count: int,
        /,
    ) -> None:
        """A matrix as oneDNN lays it out times some rows; sums of `span` inputs each are added. `bias`, `residual`: 0
        where there is none."""

    def scratch_floats(self, positions: int, head_dim: int, /) -> int:
        """How many float32 `attend` needs to work in."""

    def attend(
        self,
        projected: Address,
        stride: int,
        out: Address,
        runs: Address,
        run_count: int,
        keys: Address,
        values: Address,
        slots: int,
        kv_heads: int,
        group: int,
        head_dim: int,
        cosines: Address,
        sines: Address,
        scratch: Address,
        /,
    ) -> None:
        """Turn queries and keys of all rows, put keys and values `[kv_head, slot, head_dim]` into the cache, attend."""

    def run_layer(
        self, layer: Address, hidden: Address, rows: int, runs: Address, run_count: int, epsilon: float, /
    ) -> None:
        """A whole layer, `hidden` `[row, hidden]` in place; `layer` and `runs` as in kernels.h, 64 bits a number."""


def find_kernels() -> Kernels | None:
    """None where they were not compiled, or this CPU lacks what they need."""
    try:
        kernels = cast(Kernels, import_module("services.worker.engine.kernels.compiled"))
    except ImportError:
        return None
    return kernels if kernels.supported() else None


def choose_kernels(asked: KernelsName) -> Kernels | None:
    """None: torch's own. Raises ValueError where `compiled` was asked for and cannot be had."""
    kernels = None if asked == "torch" else find_kernels()
    if asked == "compiled" and kernels is None:
        raise ValueError(
            "kernels: compiled was asked for, and they were not compiled when this was installed, for want of a C "
            "compiler, or this CPU has no AVX512-BF16; choose --kernels auto or torch"
        )
    return kernels
