"""Whether the outputs of a packed panel share their scales: where a checkpoint has one for many outputs. Pure.

A panel then has one scale for a group of inputs in place of 64, and kernels unpack it in a third of the time.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.messages.quantization import Packing
from livescale.shared.model.declaration.rotation import head_orders
from livescale.shared.model.declaration.tensors import Shapes
from livescale.shared.model.packed.form import PANEL_OUTPUTS, packing_of


def share_scales(config: ModelConfig, shapes: Mapping[str, Shapes]) -> bool:
    """Whether no panel of a rank has outputs of two blocks of scales. `shapes` are the rank's, by block and tensor.

    Where all packed matrices fill whole panels, each is a part of a checkpoint's tensor that begins at one as well.
    """
    if config.quantization is None:
        return False
    rows = config.quantization.scale_rows
    if rows == 0:
        return True
    packed = (
        shape
        for tensors in shapes.values()
        for name, shape in tensors.items()
        if packing_of(config.quantization, name) is not None
    )
    fills = rows % PANEL_OUTPUTS == 0 and all(shape[-2] % PANEL_OUTPUTS == 0 for shape in packed)
    return fills and all(_keeps_blocks(order, rows) for order in head_orders(config).values())


def with_shared_scales(packing: Packing) -> Packing:
    """The packing of a matrix whose panels share their scales. Of integers few checkpoints have such."""
    return replace(packing, scales="float32-panel") if packing.codes == "fp8" else packing


def _keeps_blocks(order: Sequence[int], rows: int) -> bool:
    """Whether heads in another order have the same outputs in each panel, or outputs of one block of scales alone."""
    stays = all(place // PANEL_OUTPUTS == one // PANEL_OUTPUTS for place, one in enumerate(order))
    return rows % len(order) == 0 or (len(order) % PANEL_OUTPUTS == 0 and stays)
