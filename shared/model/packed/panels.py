"""Codes, scales and zeros of a matrix laid out in the panels that kernels read."""

import numpy as np
from numpy.typing import NDArray

from livescale.shared.messages.quantization import Packing
from livescale.shared.model.packed.form import (
    CODE_BITS,
    MIDDLES,
    PANEL_INPUTS,
    PANEL_OUTPUTS,
    group_count,
    panel_parts,
    scales_of_group,
)

Bytes = NDArray[np.uint8]
LANES = 16  # of the kernels' words of 32 bits


def pack_panels(packing: Packing, codes: Bytes, scales: Bytes, zeros: Bytes | None, into: Bytes) -> None:
    """Fill `into`, whole panels, with a matrix.

    `codes` are `[output, input]`, `scales` `[output, group, byte]`, and `zeros`, unless the packing has none, `[output,
    group]`. Where the outputs of a panel share their scales, those of the first one are taken.
    """
    outputs, inputs = codes.shape
    scale_bytes, zero_bytes, _ = parts = panel_parts(packing, inputs)
    panels = into.reshape(-1, sum(parts))
    groups = group_count(packing, inputs)
    rows = len(panels) * PANEL_OUTPUTS
    by_panel = _panelled(scales.reshape(outputs, groups, -1), rows)[:, :, : scales_of_group(packing)]
    panels[:, :scale_bytes] = _padded(by_panel.reshape(len(panels), -1), scale_bytes)
    wide = np.full((rows, -(-inputs // PANEL_INPUTS) * PANEL_INPUTS), MIDDLES[packing.codes], np.uint8)
    wide[:outputs, :inputs] = codes
    if packing.zeros:
        assert zeros is not None
        panels[:, scale_bytes : scale_bytes + zero_bytes] = _panelled(zeros[:, :, None], rows).reshape(len(panels), -1)
        wide[:outputs, inputs:] = zeros[:, -1:]
        wide[outputs:] = 0
    panels[:, scale_bytes + zero_bytes :] = _words(wide, CODE_BITS[packing.codes]).reshape(len(panels), -1)


def _padded(values: Bytes, size: int) -> Bytes:
    """`[panel, byte]` with zeros up to so many bytes."""
    return np.pad(values, ((0, 0), (0, size - values.shape[1])))


def _panelled(values: Bytes, rows: int) -> Bytes:
    """`[output, group, byte]` as `[panel, group, output, byte]`; outputs that are missing are zero."""
    padded = np.zeros((rows, *values.shape[1:]), np.uint8)
    padded[: len(values)] = values
    return np.ascontiguousarray(padded.reshape(-1, PANEL_OUTPUTS, *values.shape[1:]).swapaxes(1, 2))


def _words(codes: Bytes, bits: int) -> Bytes:
    """`[output, input]` as `[panel, pair of inputs, word, lane, byte]`."""
    pairs = codes.view(np.uint16).reshape(-1, PANEL_OUTPUTS, codes.shape[1] // 2)
    numbers = np.ascontiguousarray(pairs.swapaxes(1, 2)).view(np.uint8)
    fields = numbers.reshape(*numbers.shape[:2], -1, 32 // bits, LANES)
    if bits == 4:
        fields = fields[..., 0::2, :] | (fields[..., 1::2, :] << 4).astype(np.uint8)
    return np.ascontiguousarray(fields.swapaxes(-1, -2))
