"""Routers that a checkpoint has quantized: how they may be, and that they become what the law says."""

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.host.find_parameters import quantized_shapes, read_router, router_packing
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.messages.quantization import Packing, Quantization
from livescale.shared.model.checkpoint import load_model_config
from tests.quantized.expert_fixtures import ROUTER_ROWS, with_experts

ROUTER = "model.layers.0.mlp.gate.weight"
INT4, INT8 = (Packing(codes=codes, group=16, scales="float16") for codes in ("int4", "int8"))


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    """A model of one layer with experts in AWQ, and its router as well."""
    return load_model_config(with_experts("awq", tmp_path / "m", ROUTER_ROWS, quantized_router=True))


def test_a_router_is_packed_as_the_experts_of_its_layer_if_at_all(config: ModelConfig) -> None:
    parts = {"self_attn.q_proj": 0, "mlp.experts.up_proj": 1}
    quantization = Quantization(stored="awq", packings=[INT4, INT8], parts=[parts])
    assert router_packing(replace(config, quantization=quantization), 0) == INT8
    for other in (None, replace(quantization, stored="mxfp4"), replace(quantization, parts=[{"self_attn.q_proj": 0}])):
        assert router_packing(replace(config, quantization=other), 0) is None
        assert quantized_shapes(replace(config, quantization=other)) == {}
    assert router_packing(replace(config, quantization=quantization, kinds=[], experts=None), 0) is None


def test_only_routers_that_are_quantized_are_read(tmp_path: Path) -> None:
    into = memoryview(bytearray(2 * ROUTER_ROWS * 32))
    for quantized in (True, False):
        directory = with_experts("awq", tmp_path / str(quantized), ROUTER_ROWS, quantized_router=quantized)
        opened = open_checkpoint(directory, "bfloat16")
        others, reader = [name for name in opened.sources if name != ROUTER], opened.quantized
        assert reader is not None
        assert not any(read_router(name, opened.sources[name], opened.config, reader, into) for name in others)
        assert read_router(ROUTER, opened.sources[ROUTER], opened.config, reader, into) is quantized
        if quantized:
            assert np.frombuffer(into, np.uint16).any()
    made = torch.frombuffer(bytearray(into), dtype=torch.bfloat16)
    assert made.isfinite().all()
