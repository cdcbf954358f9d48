"""The bits of the compiled kernels: who has others must say so, as workers of one pool must have the same."""

from hashlib import sha256

import numpy as np

from tests.worker.engine.models import KERNELS, needs_kernels

# Of what `results` gives, by the number that kernels.h calls BITS: where a kernel gives other bits, that is raised.
KNOWN = {2: "f240cfd9d20d78d7"}
KV_HEADS, GROUP, HEAD_DIM, SLOTS = 2, 7, 64, 640
CHUNK = 72

Halves = np.ndarray[tuple[int, ...], np.dtype[np.uint16]]


class Noise:
    """bfloat16 of either sign, between an eighth and two, from a generator that will not change (PCG64)."""

    def __init__(self) -> None:
        self._generator = np.random.PCG64(1)

    def __call__(self, *shape: int) -> Halves:
        raw = self._generator.random_raw(int(np.prod(shape)))
        return ((raw & 0x81FF) + 0x3E00).astype(np.uint16).reshape(shape)


def results() -> list[Halves]:
    """What every kernel makes of the same noise, whole vectors of numbers and parts of them."""
    noise = Noise()
    return [*multiplied(noise), *normed(noise), *attended(noise)]


def multiplied(noise: Noise) -> list[Halves]:
    assert KERNELS is not None
    made = []
    for rows, inputs, outputs, span in ((1, 96, 112, 96), (7, 1_100, 64, 512), (70, 96, 144, 96)):
        matrix, bias = noise(-(-outputs // 64) * 64, -(-inputs // 32) * 32), noise(outputs)
        given, residual, out = noise(rows, inputs), noise(rows, outputs), noise(rows, outputs)
        numbers = matrix.ctypes.data, bias.ctypes.data, inputs, outputs, span
        KERNELS.multiply(*numbers, given.ctypes.data, residual.ctypes.data, out.ctypes.data, rows)
        made.append(out)
    return made


def normed(noise: Noise) -> list[Halves]:
    assert KERNELS is not None
    made = []
    for size in (64, 100):
        given, weight, norm, gated = noise(5, 2 * size), noise(2 * size), noise(5, 2 * size), noise(5, size)
        KERNELS.rms_norm(given.ctypes.data, weight.ctypes.data, norm.ctypes.data, 5, 2 * size, 1e-5)
        KERNELS.silu_times(given.ctypes.data, gated.ctypes.data, 5, size)
        made += [norm, gated]
    return made


def attended(noise: Noise) -> list[Halves]:
    """A chunk after many others, and rows that were generated."""
    assert KERNELS is not None
    heads = KV_HEADS * GROUP
    keys, values = noise(KV_HEADS, SLOTS, HEAD_DIM), noise(KV_HEADS, SLOTS, HEAD_DIM)
    cosines, sines = noise(SLOTS, HEAD_DIM), noise(SLOTS, HEAD_DIM)
    scratch = np.zeros(KERNELS.scratch_floats(SLOTS, HEAD_DIM), np.float32)
    made = []
    for begin, rows, decode in ((504, CHUNK, 0), (0, 13, 0), (576, 2, 1), (3, 1, 1)):
        given, out = noise(rows, heads + 2 * KV_HEADS, HEAD_DIM), noise(rows, heads, HEAD_DIM)
        runs = np.array([rows, 0, begin, decode], np.int64)
        cache = keys.ctypes.data, values.ctypes.data, SLOTS, KV_HEADS, GROUP, HEAD_DIM
        tables = cosines.ctypes.data, sines.ctypes.data, scratch.ctypes.data
        stride = (heads + 2 * KV_HEADS) * HEAD_DIM
        KERNELS.attend(given.ctypes.data, stride, out.ctypes.data, runs.ctypes.data, 1, *cache, *tables)
        made.append(out)
    return [*made, keys, values]


@needs_kernels
def test_other_bits_have_another_number() -> None:
    assert KERNELS is not None
    found = sha256(b"".join(result.tobytes() for result in results())).hexdigest()[:16]
    assert found == KNOWN[KERNELS.BITS], "raise BITS in kernels.h, and say here what comes of it"
