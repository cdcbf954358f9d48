"""Random parameters of made checkpoints.

They are scaled so that greedy output varies and depends on every token before it; as libraries initialise them, a model
repeats one token, which hides errors of position, cache and order.
"""

import hashlib
from math import prod

import torch

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.architectures import architecture_of
from livescale.shared.model.declaration.tensors import PATCHES

EMBEDDING_STD = 0.6
TIED_EMBEDDING_STD = 0.2  # smaller, or a tied head answers with the token that it was given
MATRIX_GAIN = 1.6
BIAS_STD = 0.3
NORM_NOISE = 0.05


class RandomParameters:
    """Draws the tensors of a checkpoint of the model of `config`; the same ones for the same seed."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self._seed = seed
        self._embedding_std = TIED_EMBEDDING_STD if config.tie_word_embeddings else EMBEDDING_STD
        # Our names say what a tensor is for where a checkpoint's own do not.
        sources = architecture_of(config).sources(config)
        self._ours = {source.name: name for name, source in sources.items()}
        self._transposed = {source.name for source in sources.values() if source.transposed}

    def draw(self, name: str, shape: torch.Size) -> torch.Tensor:
        """A tensor of a checkpoint, in bfloat16, from a seed of its own, so that it depends on no other."""
        digest = hashlib.sha256(f"{self._seed} {name}".encode()).digest()
        chance = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        noise = torch.randn(shape, generator=chance)
        called = f"{name} {self._ours.get(name, '')}".lower()
        if "norm" in called and not name.endswith("bias"):
            return (1 + NORM_NOISE * noise).bfloat16()
        if name.endswith("bias") or len(shape) == 1:  # or sinks
            return (BIAS_STD * noise).bfloat16()
        is_matrix = "embed" not in called or PATCHES in called
        # Of patches each number of a pixel is an input.
        inputs = prod(shape[1:]) if PATCHES in called else shape[0 if name in self._transposed else 1]
        std = MATRIX_GAIN / inputs**0.5 if is_matrix else self._embedding_std
        return (std * noise).bfloat16()
