"""What `auto` stands for as the number type and the layout of parameters on this machine."""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

from livescale.shared.memory.devices import count_gpus
from livescale.shared.messages.parameters import DType, Layout

AskedDType: TypeAlias = Literal[DType, "auto"]
AskedLayout: TypeAlias = Literal[Layout, "auto"]

# With fewer GPUs `auto` takes CPUs: one instance on one GPU could not be scaled.
FEWEST_GPUS = 2
# Flags in /proc/cpuinfo of CPUs that multiply bfloat16 matrices: x86 with AVX-512 or AMX, ARM.
BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# This module is there if a C compiler was there at installation.
KERNELS_MODULE = "livescale.services.worker.engine.kernels.compiled"
CPUINFO = Path("/proc/cpuinfo")


def has_compiled_kernels() -> bool:
    return find_spec(KERNELS_MODULE) is not None


def choose_form(*, on_gpus: bool, cpuinfo: str, compiled: bool) -> tuple[DType, Layout]:
    """The dtype is bfloat16 on GPUs, with compiled kernels, and where the CPU of this /proc/cpuinfo multiplies it; with
    torch on other CPUs it is slower than float32. On CPUs all kernels read panels.
    """
    if on_gpus:
        return "bfloat16", "plain"
    return "bfloat16" if compiled or BFLOAT16_FLAGS & _find_flags(cpuinfo) else "float32", "panels"


def find_form(dtype: AskedDType, layout: AskedLayout = "auto") -> tuple[DType, Layout]:
    """These, with what `livescale up` takes on this machine in place of `auto`."""
    if dtype != "auto" and layout != "auto":
        return dtype, layout
    cpuinfo = CPUINFO.read_text() if CPUINFO.exists() else ""
    on_gpus = count_gpus() >= FEWEST_GPUS
    own_dtype, own_layout = choose_form(on_gpus=on_gpus, cpuinfo=cpuinfo, compiled=has_compiled_kernels())
    return own_dtype if dtype == "auto" else dtype, own_layout if layout == "auto" else layout


def _find_flags(cpuinfo: str) -> set[str]:
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return set(value.split())
    return set()
