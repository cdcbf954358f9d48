"""What a bench asks of an engine in a process of its own, and what that answers, over a pipe.

The engine may live in an environment that has nothing of this project's: only msgspec is needed here.
"""

from typing import Literal

import msgspec

Prompts = list[list[int]]


class StartEngine(msgspec.Struct, frozen=True):
    """The first message: all processes of a bench get the same core, and are asked one at a time.

    `began`: when the process was started, on the machine's monotonic clock. `kernels`: of this engine, and of what is
    measured to bound it. `kv_cache_dtype`: of this engine alone.
    """

    checkpoint: str
    core: int
    began: float
    dtype: Literal["bfloat16", "float32", "float64"] = "bfloat16"
    kernels: str = "auto"
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"


class AskGreedy(msgspec.Struct, frozen=True, tag=True):
    """Continue the prompt by so many tokens; show the logits that each was chosen from."""

    prompt: list[int]
    tokens: int


class AskForced(msgspec.Struct, frozen=True, tag=True):
    """Asks for the logits from which these tokens would have been chosen after the prompt; only transformers answers
    it."""

    prompt: list[int]
    tokens: list[int]


class AskPrefill(msgspec.Struct, frozen=True, tag=True):
    """Prefill prompts that arrive at the same time, each to its first token."""

    prompts: Prompts


class AskDecode(msgspec.Struct, frozen=True, tag=True):
    """Decode so many steps, in each of which every prompt gains a token; all prompts have one length."""

    prompts: Prompts
    steps: int


class AskMixed(msgspec.Struct, frozen=True, tag=True):
    """Prefill prompts like `prompts` one after the other while all of `decoding` decode, for at least so many `steps`;
    and both alone before."""

    decoding: Prompts
    prompts: Prompts
    steps: int


class AskKept(msgspec.Struct, frozen=True, tag=True):
    """Asks for the prompt twice, the second time with what can be kept of the first; only this engine answers it."""

    prompt: list[int]


class AskVectors(msgspec.Struct, frozen=True, tag=True):
    """Make the vector of each prompt; all have one length, and arrive at the same time."""

    prompts: Prompts


class AskMultiply(msgspec.Struct, frozen=True, tag=True):
    """One pass of so many rows through the matrices of all layers."""

    rows: int


class AskRead(msgspec.Struct, frozen=True, tag=True):
    """Asks the process to read a large stretch of memory once."""


class AskLayerCost(msgspec.Struct, frozen=True, tag=True):
    """What a layer costs besides its kernels, in steps of so many rows."""

    rows: int
    steps: int


Question = (
    AskGreedy
    | AskForced
    | AskPrefill
    | AskDecode
    | AskMixed
    | AskKept
    | AskVectors
    | AskMultiply
    | AskRead
    | AskLayerCost
)


class Ready(msgspec.Struct, frozen=True, tag=True):
    """An engine can answer, `answering` seconds after its process was started. Where parameters come in blocks, it had
    the last one ready in `last_block` seconds. `kernels` are those of this engine that were chosen."""

    answering: float
    last_block: float | None = None
    kernels: str = ""


class EngineFailed(msgspec.Struct, frozen=True, tag=True):
    """The process cannot go on, for this reason."""

    reason: str


class GreedyTokens(msgspec.Struct, frozen=True, tag=True):
    """Tokens, and for each the logits it was chosen from: float32 `[vocab]`, as bytes."""

    tokens: list[int]
    logits: list[bytes]


class StepSeconds(msgspec.Struct, frozen=True, tag=True):
    """The CPU seconds of each step, and the seconds that went by for all of them."""

    steps: list[float]
    wall: float

    @property
    def cpu(self) -> float:
        return sum(self.steps)


class Mixed(msgspec.Struct, frozen=True, tag=True):
    """Steps of decoding alone, prompts alone, and both together, in which `decoded` tokens came beside `prompted` of
    prompts."""

    alone: StepSeconds
    prompts: StepSeconds
    both: StepSeconds
    decoded: int
    prompted: int


class Kept(msgspec.Struct, frozen=True, tag=True):
    """A prompt to its first token: with nothing kept of it, with what can be in the KV cache, and in host memory."""

    none: StepSeconds
    cached: StepSeconds
    fetched: StepSeconds


class Vectors(msgspec.Struct, frozen=True, tag=True):
    """A vector of float32 for each prompt, as bytes, and what all of them took."""

    vectors: list[bytes]
    took: StepSeconds


class MemoryRate(msgspec.Struct, frozen=True, tag=True):
    """How fast memory was read, in bytes a second."""

    bytes_per_second: float


class LayerCost(msgspec.Struct, frozen=True, tag=True):
    """Seconds of a layer in a model so small that its kernels cost next to nothing: whole, and what of it a profile
    finds outside of kernels."""

    layer: float
    outside: float


Answer = Ready | EngineFailed | GreedyTokens | StepSeconds | Mixed | Kept | Vectors | MemoryRate | LayerCost
