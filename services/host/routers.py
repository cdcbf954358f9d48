"""Routers of experts that a checkpoint has quantized. They are small, and engines compute them in float32: so hosts
dequantize them, to what they would be in the same checkpoint in bfloat16.

Whether they are quantized is seen from the tensors: most files with quantized experts do not say of routers.
"""

import numpy as np

from livescale.services.host.conversion import convert
from livescale.services.host.quantized import QuantizedReader
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.messages.quantization import Packing
from livescale.shared.model.architectures import architecture_of
from livescale.shared.model.declaration.source import Source
from livescale.shared.model.declaration.tensors import ROUTER, Shapes
from livescale.shared.model.packed.stored import stored_parts

EXPERTS = ("mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj")


def router_packing(config: ModelConfig, layer: int) -> Packing | None:
    """How the router of this layer is packed, if it is: as the experts are. What it is in MXFP4 is not known."""
    quantization = config.quantization
    if quantization is None or quantization.stored == "mxfp4" or not config.kind(layer).experts:
        return None
    return next(filter(None, (quantization.packing(layer, part) for part in EXPERTS)), None)


def read_router(name: str, source: Source, config: ModelConfig, reader: QuantizedReader, into: memoryview) -> bool:
    """Fill `into` with our tensor `name` in bfloat16, if that is a router whose file has it quantized.

    Raises CheckpointError.
    """
    if not name.endswith(ROUTER):
        return False
    packing = router_packing(config, int(name.split(".")[2]))
    if packing is None or not reader.has(_parts(config, packing, source.name)):
        return False
    wide = reader.dequantized(source, config.hidden_size, packing)
    convert(wide.view(np.uint32).reshape(-1), "F32", "bfloat16", np.frombuffer(into, np.uint16))
    return True


def quantized_shapes(config: ModelConfig) -> dict[str, Shapes]:
    """The tensors by which a checkpoint may have each router, by the name of the one that others have."""
    packings = {layer: router_packing(config, layer) for layer in range(config.num_hidden_layers)}
    names = {layer: f"model.layers.{layer}{ROUTER}" for layer, packing in packings.items() if packing is not None}
    sources = architecture_of(config).sources(config) if names else {}
    found = {sources[name].name: packings[layer] for layer, name in names.items()}
    return {name: _parts(config, packing, name) for name, packing in found.items() if packing is not None}


def _parts(config: ModelConfig, packing: Packing, name: str) -> Shapes:
    assert config.quantization is not None
    assert config.experts is not None
    return stored_parts(config.quantization, packing, name, [config.experts.count, config.hidden_size])
