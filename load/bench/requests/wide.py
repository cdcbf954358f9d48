"""A model of 500M parameters whose vocabulary has 131,072 tokens, for measurements of steps: its parameters are chance,
as nothing depends on what it says."""

import random
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from livescale.shared.messages.parameters import Manifest, ModelConfig
from livescale.shared.model.block_layout import block_layouts

VOCAB_SIZE = 131_072
END = 0
CONFIG = ModelConfig(
    family="qwen2",
    vocab_size=VOCAB_SIZE,
    hidden_size=1_024,
    intermediate_size=2_816,
    num_hidden_layers=32,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    max_position_embeddings=4_096,
    tie_word_embeddings=True,
    attention_bias=True,
    eos_token_ids=[END],
)


@dataclass(frozen=True)
class WideModel:
    """The manifest and the blocks, in bfloat16."""

    manifest: Manifest
    memory: list[memoryview]


def make_wide_model() -> WideModel:
    """Make the model up; the same at every call."""
    layouts = block_layouts(CONFIG, "bfloat16")
    chance = np.random.default_rng(7)
    # One stretch of numbers serves for all: only the time of a step is measured.
    numbers = (chance.standard_normal(1 << 22, np.float32) * 0.02).view(np.uint32) >> 16
    stretch = numbers.astype(np.uint16)
    memory = [memoryview(np.resize(stretch, layout.size_bytes // 2).tobytes()).cast("B") for layout in layouts]
    blocks = [layout.block(0) for layout in layouts]
    return WideModel(Manifest(version="wide", config=CONFIG, dtype="bfloat16", blocks=blocks), memory)


def make_wide_tokenizer() -> bytes:
    """The tokenizer.json of 131,072 tokens: all bytes, what JSON is made of, and words with a blank before or not."""
    chance = random.Random(7)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = dict.fromkeys(["<end>", *alphabet, '":', '{"', '",', '"}', "}}", "},", "Ġ{", 'Ġ"', "[]", "null", "true"])
    tokens.update(dict.fromkeys(str(number) for number in range(1_000)))
    tokens.update(dict.fromkeys("Ġ" * count for count in range(2, 33)))
    while len(tokens) < VOCAB_SIZE:
        word = "".join(chance.choices("etaoinshrdlucmfwypvbgkqjxzETAOINS_é", k=chance.randint(2, 9))).replace("é", "Ã©")
        tokens[chance.choice(("Ġ", "", "")) + word] = None
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return str(tokenizer.to_str()).encode()
