"""How many bytes a model's blocks have, from its checkpoint's configuration or from its size alone."""

import re
from pathlib import Path

from livescale.shared.model.block_layout import block_layouts
from livescale.shared.model.checkpoint import load_model_config
from livescale.shared.units import parse_size

# Billions of parameters: layers, of models that are known by their size.
LAYERS = {"7b": 32, "8b": 32, "13b": 40, "24b": 40, "70b": 80, "72b": 80}
BYTES_PER_PARAMETER = 2  # bfloat16
MOST_LAYERS = 10_000


def find_block_bytes(model: str) -> tuple[int, ...]:
    """`8b`, `size=16GB,layers=32`, or a checkpoint's directory. Raises ValueError."""
    if Path(model).is_dir():
        layouts = block_layouts(load_model_config(Path(model)), "bfloat16")
        return tuple(layout.size_bytes for layout in layouts)
    if model.lower() in LAYERS:
        billions = int(model[:-1])
        return split(billions * 10**9 * BYTES_PER_PARAMETER, LAYERS[model.lower()])
    given = re.fullmatch(r"size=([^,]+),layers=(\d+)", model.replace(" ", ""))
    if given is None:
        raise ValueError(
            f"{model!r} is no directory and no known size ({', '.join(LAYERS)}); give others as size=16GB,layers=32"
        )
    layers = int(given[2])
    if not 1 <= layers <= MOST_LAYERS:
        raise ValueError(f"layers={layers} is out of bounds; a model has 1 to {MOST_LAYERS}")
    return split(parse_size(given[1]), layers)


def split(size_bytes: int, layers: int) -> tuple[int, ...]:
    """Into equal blocks, up to a byte."""
    if size_bytes < layers:
        raise ValueError(f"{size_bytes} bytes are less than one for each of {layers} layers")
    size, rest = divmod(size_bytes, layers)
    return tuple(size + (index < rest) for index in range(layers))
