"""Matrices as oneDNN wants them. Those that arrived in its layout are used where they lie."""

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch

from shared.block_layout import PANEL_ROWS
from shared.panels import from_panels, to_panels

NOISE = 32_000  # positive bfloat16, none of them infinite


def lay_out(weights: Sequence[torch.Tensor], missing: int = 0) -> torch.Tensor:
    """`weights`, each `[out, in]` or in panels, as one matrix of oneDNN's, with so many features that are zero at its
    end. It may lie where they do, and then lives no longer."""
    if not missing and all(weight.dim() == 4 for weight in weights) and _are_adjacent(weights):
        shape = sum(len(weight) for weight in weights) * PANEL_ROWS, 2 * weights[0].shape[1]
        description = describe_panels(*shape)
        if description is not None:
            return _over(weights[0].data_ptr(), shape, description)
    rows = [as_rows(weight) for weight in weights]
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(joined(rows, missing), None)
    return packed


def as_rows(weight: torch.Tensor) -> torch.Tensor:
    """`[out, in]`."""
    return from_panels(weight) if weight.dim() == 4 else weight


def joined(tensors: Sequence[torch.Tensor], missing: int) -> torch.Tensor:
    """As one, with so many zeros at the end."""
    if missing:
        tensors = [*tensors, tensors[0].new_zeros(missing, *tensors[0].shape[1:])]
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


@cache
def describe_panels(outputs: int, inputs: int) -> torch.Tensor | None:
    """What oneDNN says of a bfloat16 matrix of this shape that lies in panels; None where it wants another layout.

    Its layout is not promised, and not the same on every CPU: so it is looked at, once a shape.
    """
    if _libtorch() is None:
        return None
    matrix = torch.zeros(outputs, inputs, dtype=torch.bfloat16)
    panel = (torch.arange(PANEL_ROWS * inputs) % NOISE).short().view(torch.bfloat16).view(PANEL_ROWS, inputs)
    matrix[:PANEL_ROWS], matrix[-PANEL_ROWS:] = panel, panel
    packed = torch.ops.mkldnn._reorder_linear_weight(matrix, None)
    if torch.ops.mkldnn._nbytes(packed) != matrix.nbytes:
        return None
    raw = (ctypes.c_char * matrix.nbytes).from_address(torch.ops.mkldnn.data_ptr(packed))
    found = torch.frombuffer(raw, dtype=torch.bfloat16).view(-1, inputs // 2, PANEL_ROWS, 2)
    right = to_panels(panel)
    if not (torch.equal(found[:1], right) and torch.equal(found[-1:], right)):
        return None
    description: torch.Tensor = torch.ops.mkldnn._get_mkldnn_serialized_md(packed)
    return description.contiguous()


def _are_adjacent(weights: Sequence[torch.Tensor]) -> bool:
    """Whether each begins where the one before it ends."""
    return all(one.data_ptr() + one.nbytes == other.data_ptr() for one, other in pairwise(weights))


@cache
def _libtorch() -> ctypes.CDLL | None:
    """None on systems where it has another name."""
    try:
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    except OSError:
        return None


def _over(address: int, shape: tuple[int, int], description: torch.Tensor) -> torch.Tensor:
    """Memory as a matrix of oneDNN's, by torch's stable interface for C."""
    library, made = _libtorch(), ctypes.c_void_p()
    assert library is not None
    failed = library.aoti_torch_create_tensor_from_blob_v2(
        ctypes.c_void_p(address),
        ctypes.c_int64(2),
        (ctypes.c_int64 * 2)(*shape),
        (ctypes.c_int64 * 2)(shape[1], 1),
        ctypes.c_int64(0),
        library.aoti_torch_dtype_bfloat16(),
        library.aoti_torch_device_type_cpu(),
        0,
        ctypes.byref(made),
        library.aoti_torch_layout__mkldnn(),
        ctypes.c_void_p(description.data_ptr()),
        ctypes.c_int64(description.nbytes),
    )
    if failed:
        raise RuntimeError(f"torch made no matrix of {shape} over memory")
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    result: torch.Tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule(made.value, None, None))
    return result
