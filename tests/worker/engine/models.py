"""Small models of many shapes: the reference in transformers, and our engine over the same checkpoint."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

import pytest
import torch
import transformers
from _pytest.mark import ParameterSet
from transformers.utils.logging import disable_progress_bar

from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.contract import NO_GPU_FEATURES, GpuFeatures
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kernels.variants import (
    VARIANTS,
    Kernels,
    KernelsName,
    choose_kernels,
    open_variant,
)
from livescale.services.worker.engine.kv_store import allocate_kv_memory
from livescale.services.worker.engine.tensor_parallel import Ranks
from livescale.shared.messages.parameters import DType, Layout, Manifest
from tests.checkpoints import made_directory
from tests.worker.engine.configs import ALL_CONFIGS
from tests.worker.requests import BLOCK_TOKENS, CONTEXT

# Those that workers of this machine use; the environment says which where the machine stands for another.
KERNELS = choose_kernels(cast(KernelsName, os.environ.get("LIVESCALE_KERNELS", "auto"))).kernels
needs_kernels = pytest.mark.skipif(KERNELS is None, reason="kernels were not compiled, or torch's were asked for")


def find_variants() -> tuple[dict[str, Kernels], dict[str, str]]:
    """Every variant of the compiled kernels that this CPU can run, and why it cannot run the others."""
    found: dict[str, Kernels] = {}
    missing: dict[str, str] = {}
    for name in VARIANTS:
        try:
            found[name] = open_variant(name)
        except ValueError as error:
            missing[name] = str(error)
    return found, missing


VARIANTS_HERE, VARIANTS_MISSING = find_variants()


@dataclass(frozen=True)
class Checkpointed:
    """A manifest and the bytes of its blocks."""

    manifest: Manifest
    blocks: tuple[bytearray, ...]

    def engine(
        self, kv_tokens: int = 8_192, kernels: Kernels | None = None, on_gpu: GpuFeatures = NO_GPU_FEATURES
    ) -> TorchEngine:
        """An engine with every block added."""
        engine = self.empty_engine(kv_tokens, kernels, on_gpu)
        for index, block in enumerate(self.blocks):
            engine.add_block(index, memoryview(block))
        return engine

    def rank(self, shard: int, ranks: Ranks, kernels: Kernels | None = None) -> TorchEngine:
        """The engine of one of several ranks."""
        manifest = self.manifest.of_shard(shard)
        engine = TorchEngine(manifest, allocate_kv_memory(1 << 22), BLOCK_TOKENS, CONTEXT, kernels, ranks)
        for index in range(len(manifest.blocks)):
            engine.add_block(index, memoryview(self.blocks[shard * len(manifest.blocks) + index]))
        return engine

    def empty_engine(
        self, kv_tokens: int = 8_192, kernels: Kernels | None = None, on_gpu: GpuFeatures = NO_GPU_FEATURES
    ) -> TorchEngine:
        config = self.manifest.config
        per_token = config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * 4
        memory = allocate_kv_memory(kv_tokens * per_token)
        return TorchEngine(self.manifest, memory, BLOCK_TOKENS, CONTEXT, kernels, on_gpu=on_gpu)


@dataclass(frozen=True)
class Kind:
    """A way to compute whose rows must have the same bits everywhere."""

    dtype: DType
    kernels: Kernels | None = None

    def engine(self, name: str, kv_tokens: int = 8_192) -> TorchEngine:
        return checkpointed(name, self.dtype).engine(kv_tokens, self.kernels)


def kind(variant: str, dtype: DType) -> ParameterSet:
    """A variant in one type of numbers, to be skipped where this CPU has not what it takes."""
    reason = f"{variant}: {VARIANTS_MISSING.get(variant, '')}"
    marks = [] if variant in VARIANTS_HERE else [pytest.mark.skip(reason=reason)]
    return pytest.param(Kind(dtype, VARIANTS_HERE.get(variant)), id=f"{variant}-{dtype}", marks=marks)


# In float32 all variants compute alike, but for denormal numbers.
KINDS = [
    pytest.param(Kind("float32"), id="torch-float32"),
    pytest.param(Kind("bfloat16"), id="torch-bfloat16"),
    kind("portable", "float32"),
    *(kind(variant, "bfloat16") for variant in VARIANTS),
]


def draw_parameters(model: "transformers.PreTrainedModel") -> None:
    """Give a model random parameters, scaled so that its output varies and depends on every token before it."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape)
        if name.endswith("bias"):
            made = 0.3 * noise
        elif "norm" in name or ".ln_" in name:
            made = 1 + 0.05 * noise
        else:
            is_looked_up = any(part in name for part in ("embed", "wte", "wpe"))
            made = noise * (0.6 if is_looked_up else 1.6 / parameter.shape[-1] ** 0.5)
        # Values that bfloat16 has, so that both dtypes serve the same parameters.
        parameter.data = made.bfloat16().to(parameter.dtype)
    model.tie_weights()


@cache
def reference(name: str, dtype: DType = "float32") -> "transformers.PreTrainedModel":
    """The model `name` in transformers, with the same random parameters each time."""
    torch.manual_seed(11)
    model = transformers.AutoModelForCausalLM.from_config(ALL_CONFIGS[name](), dtype=torch.float32)
    draw_parameters(model)
    made: transformers.PreTrainedModel = model.to(torch.bfloat16 if dtype == "bfloat16" else torch.float32).eval()
    # What is kept in float32, as transformers does where it reads a checkpoint.
    for buffer_name, buffer in made.named_buffers():
        if buffer_name.endswith("e_score_correction_bias"):
            buffer.data = 0.3 * torch.randn(buffer.shape)
    return made


@cache
def checkpointed(name: str, dtype: DType = "float32", shards: int = 1, layout: Layout = "plain") -> Checkpointed:
    """The same model as a host reads it from a Hugging Face directory, for so many ranks."""
    return read_blocks(saved(name), dtype, shards, layout)


def read_blocks(directory: Path, dtype: DType, shards: int = 1, layout: Layout = "plain") -> Checkpointed:
    """What a host reads from a Hugging Face directory."""
    checkpoint = open_checkpoint(directory, dtype, shards, layout)
    blocks = tuple(bytearray(one.size_bytes) for one in checkpoint.layouts)
    checksums = [checkpoint.read_block(index, memoryview(block)) for index, block in enumerate(blocks)]
    return Checkpointed(checkpoint.manifest(checksums), blocks)


@cache
def saved(name: str) -> Path:
    """The same model in a Hugging Face directory, which is there until the process ends."""
    directory = made_directory() / "references" / name
    disable_progress_bar()
    reference(name).save_pretrained(directory)
    return directory


def reference_logits(name: str, prompt: list[int], tokens: list[int], dtype: DType = "float32") -> torch.Tensor:
    """What each of these tokens is chosen from after the prompt and those before it, `[token, vocab]` in float32."""
    return logits_of(reference(name, dtype), prompt, tokens)


def logits_of(model: "transformers.PreTrainedModel", prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """The same of any model."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([prompt + tokens[:-1]])).logits[0]
        return logits[len(prompt) - 1 :].to(torch.float32, copy=True)


def kept_logits(name: str, prompt: list[int], tokens: list[int], dtype: DType = "float32") -> torch.Tensor:
    """The reference's logits, computed once for all ways to compute that choose these tokens; not those of a reference
    that is changed for a while."""
    return _kept_logits(name, tuple(prompt), tuple(tokens), dtype)


@cache
def _kept_logits(name: str, prompt: tuple[int, ...], tokens: tuple[int, ...], dtype: DType) -> torch.Tensor:
    return reference_logits(name, list(prompt), list(tokens), dtype)
