"""Reads a quantized matrix of a checkpoint into the packed panels that kernels read."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from livescale.services.host.conversion import STORED_BITS, are_finite, convert
from livescale.services.host.safetensors_files import AGAIN, StoredTensor, read_bytes
from livescale.shared.messages.quantization import Packing, Quantization
from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.model.declaration.experts import Fused
from livescale.shared.model.declaration.tensors import Source
from livescale.shared.model.packed.form import (
    CODE_BITS,
    MIDDLES,
    PANEL_OUTPUTS,
    WEIGHT,
    group_count,
    group_of,
    scale_name,
)
from livescale.shared.model.packed.panels import Bytes, pack_panels
from livescale.shared.model.sharding import ShardSlice

Array = NDArray[Any]
ROWS_AT_ONCE = 16 * PANEL_OUTPUTS  # packed together, which bounds the memory that this takes
# Of the eight outputs in a word of AWQ, the place of each.
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
NOT_A_NUMBER = 0x7F  # of float8_e4m3fn, with either sign
FP4_MAGNITUDE = 7  # of float4_e2m1fn, without the sign
ONE_IN_E8M0, NO_NUMBER_IN_E8M0 = 127, 255
FP8_CODES = np.arange(256)
FP8_EXPONENTS = FP8_CODES >> 3 & 15
FP8_VALUES = np.ldexp(  # the number of each code; those that are none are refused
    np.where(FP8_CODES & 128, -1.0, 1.0) * (8 * (FP8_EXPONENTS > 0) + (FP8_CODES & 7)),
    np.maximum(FP8_EXPONENTS, 1) - 10,
).astype(np.float32)
LARGEST = 3.38e38  # of bfloat16
LARGEST_FP8_SCALE = 128.0
LARGEST_CODE = 65_791.0  # of integers, with what kernels add to them before they multiply
LEAST_SCALE = 2.0**-126  # a smaller number is denormal in float32


@dataclass(frozen=True)
class Coded:
    """A matrix `[output, input]` as codes, scales in float32 and zeros, each of the latter `[output, group]`."""

    codes: Bytes
    scales: NDArray[np.float32]
    zeros: Bytes | None

    def rows(self, start: int, stop: int) -> "Coded":
        zeros = None if self.zeros is None else self.zeros[start:stop]
        return Coded(self.codes[start:stop], self.scales[start:stop], zeros)

    def ordered(self, order: tuple[int, ...]) -> "Coded":
        """Return the rows of each head in another order."""
        places = np.arange(len(self.codes)).reshape(-1, len(order))[:, list(order)].reshape(-1)
        zeros = None if self.zeros is None else self.zeros[places]
        return Coded(self.codes[places], self.scales[places], zeros)

    def columns(self, start: int, stop: int, group: int) -> "Coded":
        """Inputs `start` to `stop`, which are whole groups."""
        groups = slice(start // group, -(-stop // group))
        zeros = None if self.zeros is None else self.zeros[:, groups]
        return Coded(self.codes[:, start:stop], self.scales[:, groups], zeros)


class QuantizedReader:
    """Reads matrices from the files of a checkpoint. Raises CheckpointError."""

    def __init__(self, quantization: Quantization, stored: dict[str, StoredTensor]) -> None:
        self._quantization = quantization
        self._stored = stored

    def has(self, parts: Iterable[str]) -> bool:
        """Whether the checkpoint has tensors of all these names."""
        return all(part in self._stored for part in parts)

    def read(self, source: Source, inputs: int, packing: Packing, cut: ShardSlice | None, into: memoryview) -> None:
        """Fill `into` with the part `cut` of a matrix that has so many inputs in the checkpoint."""
        module, made = source.name.removesuffix(WEIGHT), self._matrix(source, inputs, packing)
        if cut is not None and cut.dimension == 0:
            made = made.rows(cut.start, cut.stop)
        elif cut is not None:
            made = made.columns(cut.start, cut.stop, group_of(packing, inputs))
        self._check(module, packing, made)
        scales = _scale_bytes(made.scales, packing)
        if scales is None:
            raise CheckpointError(
                f"{self._file(module)}: has scales that {packing.scales} does not hold; set dtype to float32 in its "
                "config.json"
            )
        panels = np.frombuffer(into, np.uint8)
        panel_bytes = panels.size // -(-len(made.codes) // PANEL_OUTPUTS)
        for first in range(0, len(made.codes), ROWS_AT_ONCE):
            part, stop = made.rows(first, first + ROWS_AT_ONCE), min(first + ROWS_AT_ONCE, len(made.codes))
            begin, end = first // PANEL_OUTPUTS * panel_bytes, -(-stop // PANEL_OUTPUTS) * panel_bytes
            pack_panels(packing, part.codes, scales[first:stop], part.zeros, panels[begin:end])

    def dequantized(self, source: Source, inputs: int, packing: Packing) -> NDArray[np.float32]:
        """A whole matrix of integers or floats of 8 bits, before it is rounded."""
        made = self._matrix(source, inputs, packing)
        self._check(source.name.removesuffix(WEIGHT), packing, made)
        group = np.arange(inputs) // group_of(packing, inputs)
        if packing.codes == "fp8":
            numbers = FP8_VALUES[made.codes]
        else:
            zeros = MIDDLES[packing.codes] if made.zeros is None else made.zeros[:, group]
            numbers = made.codes.astype(np.float32) - zeros
        return np.asarray(numbers * made.scales[:, group], np.float32)

    def _matrix(self, source: Source, inputs: int, packing: Packing) -> Coded:
        module = source.name.removesuffix(WEIGHT)
        if source.fused is not None:
            made = self._of_expert(module, source.fused, packing)
        else:
            made = self._coded(module, inputs, packing).rows(source.start, source.start + source.rows)
        return made.ordered(source.order) if source.order else made

    def _coded(self, module: str, inputs: int, packing: Packing) -> Coded:
        bits, groups = CODE_BITS[packing.codes], group_count(packing, inputs)
        match self._quantization.stored:
            case "gptq" | "gptq_v2":
                self._check_order(f"{module}.g_idx", inputs, group_of(packing, inputs))
                scales = np.ascontiguousarray(self._floats(f"{module}.scales").T)
                codes = _fields(self._words(f"{module}.qweight").T, bits)[:, :inputs]
                zeros = _fields(self._words(f"{module}.qzeros"), bits)[:, : len(scales)]
                if self._quantization.stored == "gptq":  # whose files have zeros less one
                    zeros = zeros + np.uint8(1) & np.uint8((1 << bits) - 1)
                return self._symmetric(module, packing, Coded(codes, scales, zeros.T))
            case "awq":
                scales = np.ascontiguousarray(self._floats(f"{module}.scales").T)
                codes = _in_order(_fields(self._words(f"{module}.qweight"), bits))[:, : len(scales)]
                zeros = _in_order(_fields(self._words(f"{module}.qzeros"), bits))[:, : len(scales)]
                return Coded(codes.T, scales, zeros.T)
            case "packed":
                codes = _fields(self._words(f"{module}.weight_packed"), bits)[:, :inputs]
                scales = self._scales(module, len(codes), groups)
                if not packing.zeros:
                    return Coded(codes, scales, None)
                zeros = _fields(self._words(f"{module}.weight_zero_point").T, bits)[:, : len(codes)]
                return Coded(codes, scales, zeros.T)
        # Integers have a sign here.
        sign = np.uint8(0 if packing.codes == "fp8" else MIDDLES["int8"])
        codes = self._bytes(f"{module}{WEIGHT}").reshape(-1, inputs) ^ sign
        scales = self._scales(module, len(codes), groups)
        if not packing.zeros:
            return Coded(codes, scales, None)
        return Coded(codes, scales, self._bytes(f"{module}.weight_zero_point").reshape(-1, groups) ^ sign)

    def _of_expert(self, module: str, fused: Fused, packing: Packing) -> Coded:
        """One expert's matrix in MXFP4. Blocks of nothing but zeros may have any scale: theirs becomes 1."""
        blocks, scales = (
            self._bytes_of_expert(f"{module}_{part}", fused)[fused.first :: fused.step] for part in ("blocks", "scales")
        )
        codes = _fields(blocks.reshape(len(blocks), -1), CODE_BITS[packing.codes])
        groups = codes.reshape(*scales.shape, packing.group)
        exponents = np.where((groups & FP4_MAGNITUDE).any(axis=2), scales, ONE_IN_E8M0)
        powers = np.ldexp(1.0, exponents.astype(np.int32) - ONE_IN_E8M0)
        wide = np.where(exponents == NO_NUMBER_IN_E8M0, np.nan, powers)
        return Coded(codes, wide.astype(np.float32), None)

    def _bytes_of_expert(self, name: str, fused: Fused) -> Bytes:
        one = self._stored[name].rows(fused.expert, fused.expert + 1)
        return read_bytes(one).reshape(one.shape[1:])

    def _scales(self, module: str, outputs: int, groups: int) -> NDArray[np.float32]:
        rows = self._quantization.scale_rows
        scales = self._floats(module + scale_name(self._quantization))
        if rows == 0:
            return np.broadcast_to(scales.reshape(1, 1), (outputs, groups))
        return np.repeat(scales.reshape(-1, groups), rows, axis=0)[:outputs]

    def _symmetric(self, module: str, packing: Packing, made: Coded) -> Coded:
        """The matrix without its zeros, where config.json says that they are all the same."""
        assert made.zeros is not None
        if packing.zeros:
            return made
        if (made.zeros != MIDDLES[packing.codes]).any():
            raise CheckpointError(
                f"{self._file(module)}: {module} has zeros of its own, though quantization_config says sym; "
                "set sym to false there"
            )
        return Coded(made.codes, made.scales, None)

    def _check_order(self, name: str, inputs: int, group: int) -> None:
        if name in self._stored and (self._words(name) != np.arange(inputs) // group).any():
            raise CheckpointError(
                f"{self._stored[name].file}: {name} has inputs in another order (act-order), which is not served; "
                "quantize without desc_act"
            )

    def _check(self, module: str, packing: Packing, made: Coded) -> None:
        """Refuse numbers that are none, or too large or too small for the kernels to be exact."""
        bad, largest = False, LARGEST_CODE
        if packing.codes == "fp8":
            bad, largest = bool((made.codes & NOT_A_NUMBER == NOT_A_NUMBER).any()), 448.0
        if packing.codes == "fp4":
            largest = 6.0
        sizes = np.abs(made.scales)
        most = min(LARGEST / largest, LARGEST_FP8_SCALE if packing.codes == "fp8" else LARGEST)
        if bad or not np.isfinite(sizes).all() or sizes.max() >= most:
            raise CheckpointError(
                f"{self._file(module)}: {module} holds NaN, infinity or scales of {most:.3g} and more; {AGAIN}"
            )
        least = LEAST_SCALE * (2.0 if packing.codes == "fp4" else 1.0)  # as half of it is a number, too
        if ((sizes > 0) & (sizes < least)).any():
            raise CheckpointError(f"{self._file(module)}: {module} has scales below {least:.3g}; {AGAIN}")

    def _file(self, module: str) -> str:
        return next(
            str(one.file) for name, one in self._stored.items() if name.startswith((f"{module}.", f"{module}_"))
        )

    def _words(self, name: str) -> Array:
        stored = self._stored[name]
        return self._bytes(name).view(np.uint32).reshape(stored.shape)

    def _floats(self, name: str) -> NDArray[np.float32]:
        stored = self._stored[name]
        bits = self._bytes(name).view(STORED_BITS[stored.dtype])
        if not are_finite(bits, stored.dtype):
            raise CheckpointError(f"{stored.file}: {name} holds NaN or infinity; {AGAIN}")
        wide = np.empty(bits.size, np.uint32)
        convert(bits, stored.dtype, "float32", wide)
        return wide.view(np.float32).reshape(stored.shape)

    def _bytes(self, name: str) -> Bytes:
        """The bytes of a tensor."""
        return read_bytes(self._stored[name])


def _fields(words: Array, bits: int) -> Bytes:
    """Words `[row, word]` as their fields `[row, field]`, the lowest bits first."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return octets
    return np.stack((octets & 15, octets >> 4), axis=-1).reshape(len(octets), -1)


def _in_order(fields: Bytes) -> Bytes:
    """Fields as AWQ interleaves them, in the order of outputs."""
    return fields.reshape(len(fields), -1, len(AWQ_PLACES))[:, :, list(AWQ_PLACES)].reshape(len(fields), -1)


def _scale_bytes(scales: NDArray[np.float32], packing: Packing) -> Bytes | None:
    """Scales `[output, group]` in the type that the packing has, `[output, group, byte]`; None if that does not hold
    them."""
    scales = np.ascontiguousarray(scales)
    if packing.scales == "e8m0":
        bits = scales.view(np.uint32)
        exact, made = not (bits & 0x807FFFFF).any(), (bits >> 23).astype(np.uint8)
    elif packing.scales == "float16":
        with np.errstate(over="ignore"):
            halves = scales.astype(np.float16)
        exact, made = bool((halves.astype(np.float32) == scales).all()), halves.view(np.uint8)
    elif packing.scales == "bfloat16":
        bits = scales.view(np.uint32)
        exact, made = not (bits & 0xFFFF).any(), (bits >> 16).astype(np.uint16).view(np.uint8)
    else:
        exact, made = True, scales.view(np.uint8)
    return made.reshape(*scales.shape, -1) if exact else None
