"""The kernels in C beside this file as Python sees them. Tensors are given by their addresses; all are bfloat16."""

from importlib import import_module
from typing import Protocol, cast

Address = int


class Kernels(Protocol):
    """They are compiled at installation where there is a compiler."""

    def supported(self) -> bool:
        """Whether this CPU has what they need, AVX512-BF16."""

    def rms_norm(
        self, hidden: Address, weight: Address, out: Address, rows: int, size: int, epsilon: float, /
    ) -> None: ...

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


def find_kernels() -> Kernels | None:
    """None where they were not compiled, or this CPU lacks what they need."""
    try:
        kernels = cast(Kernels, import_module("services.worker.engine.kernels.compiled"))
    except ImportError:
        return None
    return kernels if kernels.supported() else None
