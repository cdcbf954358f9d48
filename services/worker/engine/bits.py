"""The name of the bits that a worker computes.

It is a digest of what the worker's kernels compute from fixed inputs, so it changes by itself with the kernels. All
workers of a system must have the same name.
"""

import hashlib
from collections.abc import Iterator
from functools import cache

import torch
from torch.nn.functional import scaled_dot_product_attention

from livescale.services.worker.engine.kernels.variants import FLASHINFER, TORCH, KernelChoice, Kernels
from livescale.services.worker.engine.norms import TorchNorm
from livescale.services.worker.engine.parameters import TorchLinear, slab_rows, stable_silu
from livescale.services.worker.engine.rope import turn
from livescale.shared.memory.devices import CPU

DIGITS = 16
EMULATED = "amx-emulated"
# Shapes of matrices `[out, in]`: libraries split sums of more than 512 inputs into parts.
SHAPES = ((96, 64), (160, 640), (128, 1_536), (64, 2_560))


def name_of_bits(chosen: KernelChoice, device: str, flashinfer: bool = False) -> str:
    """The kernels' name with a digest. Call it on the thread that computes: torch's bits may depend on its threads."""
    if chosen.kernels is not None:
        # What is emulated has the bits of the instruction.
        variant = "amx" if chosen.variant == EMULATED else chosen.variant
        return f"{variant}-{_digest(chosen.kernels)}"
    kind = torch.backends.cpu.get_cpu_capability() if device == CPU else torch.cuda.get_device_name(device)
    name = FLASHINFER if flashinfer else TORCH
    return f"{name}-{torch.__version__}-{kind.replace(' ', '_')}-{torch_digest(device)}"


@cache  # it takes 50 ms, and a process may have many workers where they are simulated
def _digest(kernels: Kernels) -> str:
    return kernels.digest()


@torch.inference_mode()
def torch_digest(device: str) -> str:
    """A digest of what torch's kernels compute from fixed inputs on `device`."""
    found = hashlib.sha256()
    for dtype in (torch.bfloat16, torch.float32):
        for made in _results(Noise(dtype, device)):
            found.update(made.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:DIGITS]


class Noise:
    """Random numbers that are the same on every machine (Mersenne Twister)."""

    def __init__(self, dtype: torch.dtype, device: str) -> None:
        self._generator = torch.Generator().manual_seed(1)
        self._dtype = dtype
        self._device = device

    def __call__(self, *shape: int) -> torch.Tensor:
        # Whole numbers first: they are drawn alike by any instructions.
        drawn = torch.randint(-4_096, 4_096, shape, generator=self._generator)
        return (drawn / 1_024).to(self._dtype).to(self._device)


def _results(noise: Noise) -> Iterator[torch.Tensor]:
    """Matrices, norms, activations, positions, attention of a prompt's rows and of a generated one."""
    rows = slab_rows(noise(1).device.type)
    for outputs, inputs in SHAPES:
        given = noise(rows, inputs)
        product = TorchLinear({"m.weight": noise(outputs, inputs), "m.bias": noise(outputs)}, "m")(given)
        yield product
        yield TorchNorm(noise(inputs), 1e-5)(given)
        yield stable_silu(product)
        heads = noise(rows, 2, 64)
        turn(heads, noise(rows, 1, 64), noise(rows, 1, 64))
        yield heads
    keys, values = noise(2, 700, 64), noise(2, 700, 64)
    for queries in (8, 1):
        yield scaled_dot_product_attention(noise(2, queries, 64), keys, values)
