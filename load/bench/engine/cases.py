"""The cases of `livescale bench engine`: prompts and decodes made up from a seed, so that every engine is asked the
same, and how much a model multiplies for them. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from livescale.load.peers.protocol import AskDecode, AskKept, AskMixed, AskPrefill, Prompts
from livescale.shared.messages.parameters import ModelConfig

CONTEXT = 64  # tokens of a prompt before a decode
STEPS = 16
FIRST_TOKENS = 64  # of the prompts of first requests, one of them after the other
FIRST_LATER = 5
CHECKED = (5, 60, 200)  # prompts whose logits are compared; the last is prefilled in two chunks
CHECKED_TOKENS = 3
MIXED_ROWS = 16
MIXED_PROMPTS = (512, 512)
TAIL_STEPS = 200  # in all rounds: of fewer a 99th percentile is their maximum
KEPT_PROMPT = 2_048


@dataclass(frozen=True)
class PrefillCase:
    """Prompts of these lengths that arrive at the same time."""

    name: str
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def question(self, seed: int, vocab_size: int) -> AskPrefill:
        return AskPrefill(prompts(seed, vocab_size, self.lengths))


@dataclass(frozen=True)
class DecodeCase:
    """So many rows that decode together for `STEPS` steps."""

    name: str
    rows: int

    @property
    def tokens(self) -> int:
        return self.rows * STEPS

    def question(self, seed: int, vocab_size: int) -> AskDecode:
        return AskDecode(prompts(seed, vocab_size, (CONTEXT,) * self.rows), STEPS)


Case = PrefillCase | DecodeCase
PREFILLS = (
    PrefillCase("prefill 128", (128,)),
    PrefillCase("prefill 512", (512,)),
    PrefillCase("prefill 2048", (2048,)),
    PrefillCase("prefill 4 x 512", (512,) * 4),
)
DECODES = (DecodeCase("decode b1", 1), DecodeCase("decode b8", 8), DecodeCase("decode b32", 32))
CASES: tuple[Case, ...] = (*PREFILLS, *DECODES)
WARM_UPS: tuple[Case, ...] = (PREFILLS[0], DECODES[0], DECODES[1])


def mixed_question(seed: int, vocab_size: int, rounds: int) -> AskMixed:
    """The question of one round; all rounds together have the steps that a tail needs."""
    decoding = prompts(seed, vocab_size, (CONTEXT,) * MIXED_ROWS)
    return AskMixed(decoding, prompts(seed + 1, vocab_size, MIXED_PROMPTS), -(-TAIL_STEPS // rounds))


def kept_question(seed: int, vocab_size: int) -> AskKept:
    return AskKept(*prompts(seed, vocab_size, (KEPT_PROMPT,)))


def prompts(seed: int, vocab_size: int, lengths: tuple[int, ...]) -> Prompts:
    chance = random.Random(seed)
    return [chance.choices(range(vocab_size), k=length) for length in lengths]


def layer_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """`[out, in]` of a layer's matrices; those with the same input are one."""
    queries = config.num_attention_heads * config.head_dim
    keys_values = 2 * config.num_key_value_heads * config.head_dim
    return [
        (queries + keys_values, config.hidden_size),
        (config.hidden_size, queries),
        (2 * config.intermediate_size, config.hidden_size),
        (config.hidden_size, config.intermediate_size),
    ]


def attention_share(config: ModelConfig, lengths: Sequence[int]) -> float:
    """How much attention multiplies for prompts of these lengths, as a multiple of what the matrices do. Each position
    is multiplied with keys and values up to its own."""
    matrices = sum(lengths) * sum(rows * columns for rows, columns in layer_shapes(config))
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    return 2 * pairs * config.num_attention_heads * config.head_dim / matrices
