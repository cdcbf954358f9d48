"""The part of a request's body that says how tokens are chosen, how likely they were, and when an answer ends that
repeats itself: OpenAI's and vLLM's names. Pure.

Both the checks and the documentation are made from it.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.output import Output, TextPiece
from livescale.services.gateway.progress import Fresh
from livescale.shared.messages.requests import MOST_LOGPROBS

MOST_CHOICES = 128
REPEATED = "repetition_detected"  # the stop reason, as in vLLM
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
Stops = Annotated[list[StopString], Meta(max_length=64)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TopLogprobs = Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)]
Choices = Annotated[int, Meta(ge=1, le=MOST_CHOICES)]
RequestPriority = Annotated[int, Meta(description="Smaller is served earlier", ge=-(2**31), le=2**31 - 1)]
RequestTimeout = Annotated[
    Annotated[float, Meta(gt=0)] | None,
    Meta(description="Seconds until the request ends with an error; the gateway sets default and maximum"),
]


class SamplingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen, in vLLM's order: allowed tokens and bad words, bias, penalties, temperature, min_p, top_k,
    top_p."""

    n: Annotated[Choices, Meta(description="So many choices for each prompt; choice 0 is that of n = 1")] = 1
    seed: Annotated[
        Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None,
        Meta(description="The same seed gives the same tokens; by default a fresh one"),
    ] = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=2)] | None,
        Meta(description="0 is greedy. By default as in the checkpoint's generation_config.json, else 1"),
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="By default as in the checkpoint's generation_config.json, else 1 (off)"),
    ] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None,
        Meta(description="0 and -1 are off. By default as in the checkpoint's generation_config.json, else off"),
    ] = None
    min_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Only tokens at least so likely, as a part of the likeliest; 0 is off"),
    ] = None
    presence_penalty: Annotated[Penalty, Meta(description="Of tokens that were generated")] = 0.0
    frequency_penalty: Annotated[Penalty, Meta(description="For each time that a token was generated")] = 0.0
    repetition_penalty: Annotated[
        Annotated[float, Meta(gt=0, le=100)] | None,
        Meta(description="Of tokens in the prompt or generated: logits are divided, or multiplied where negative"),
    ] = None
    logit_bias: Annotated[
        Annotated[dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)],
        Meta(description="By token id, what is added to its logit"),
    ] = {}
    bad_words: Annotated[
        Annotated[list[StopString], Meta(max_length=256)], Meta(description="Words that are not generated")
    ] = []
    allowed_token_ids: Annotated[
        Annotated[list[TokenId], Meta(min_length=1, max_length=4096)] | None,
        Meta(description="No other tokens are generated"),
    ] = None
    logprob_token_ids: Annotated[
        Annotated[list[TokenId], Meta(max_length=MOST_LOGPROBS)],
        Meta(description="With logprobs: tell how likely these tokens are, in place of the likeliest"),
    ] = []
    use_beam_search: Annotated[
        bool, Meta(description="The n likeliest continuations as a whole are the choices; n is at most 10")
    ] = False
    length_penalty: Annotated[
        float, Meta(description="With use_beam_search: the higher, the better are long ones", ge=-10, le=10)
    ] = 1.0
    stop: Annotated[StopString | Stops | None, Meta(description="Up to 64 strings that end the text")] = None
    stop_token_ids: Annotated[
        Annotated[list[TokenId], Meta(max_length=256)], Meta(description="Tokens that end the text")
    ] = []
    include_stop_str_in_output: Annotated[
        bool, Meta(description="What ended the text is a part of it: stop string or stop token")
    ] = False
    min_tokens: Annotated[int, Meta(description="Nothing ends the text before so many tokens", ge=0)] = 0
    ignore_eos: Annotated[bool, Meta(description="Generate on after an end-of-sequence token")] = False
    skip_special_tokens: Annotated[bool, Meta(description="Leave special tokens out of the text")] = True


def stop_strings(options: SamplingOptions) -> list[str]:
    """The stop strings that a body asks for, as a list."""
    if options.stop is None:
        return []
    return [options.stop] if isinstance(options.stop, str) else options.stop


def spellings(word: str) -> tuple[str, str]:
    """How a bad word may begin: a text, or a word within one."""
    bare = word.lstrip()
    return bare, f" {bare}"


def banned(plain: list[int], spaced: list[int]) -> list[list[int]]:
    """The sequences of tokens that a bad word is, by the tokens of its spellings, as in vLLM: the second counts where
    the space makes its first token another one."""
    if not plain:
        return []
    same_length = len(spaced) == len(plain)
    return [plain, spaced] if same_length and spaced[0] != plain[0] else [plain]


class RepetitionDetection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer ends where its last tokens are a pattern, of at least `min_pattern_size` tokens, `min_count` times."""

    max_pattern_size: Annotated[int, Meta(ge=0, le=1024)] = 0
    min_pattern_size: Annotated[int, Meta(ge=0, le=1024)] = 0
    min_count: Annotated[int, Meta(ge=0, le=1024)] = 0


def check_repetition(asked: RepetitionDetection) -> None:
    """Check what the bounds of single fields cannot say. Raises ApiError 400."""
    if asked.min_pattern_size > asked.max_pattern_size:
        raise bad_request(
            "'min_pattern_size' is more than 'max_pattern_size'; give at most that.",
            "repetition_detection.min_pattern_size",
        )
    if asked.max_pattern_size and asked.min_count < 2:
        raise bad_request(
            "'min_count' is less than 2, and what comes once is not repeated; give at least 2.",
            "repetition_detection.min_count",
        )


class RepetitionOutput:
    """Hands tokens on to another output until they repeat; nothing ends before `min_tokens`."""

    def __init__(self, output: Output, asked: RepetitionDetection, min_tokens: int) -> None:
        self._output = output
        self._asked = asked
        self._min_tokens = min_tokens
        self._tokens: list[int] = []

    @property
    def reasoning_tokens(self) -> int | None:
        return self._output.reasoning_tokens

    def feed(self, fresh: Fresh) -> TextPiece:
        """Return the next piece; with a reason where the request is over, or goes on and on."""
        for place, token_id in enumerate(fresh.token_ids, start=1):
            self._tokens.append(token_id)
            if len(self._tokens) >= self._min_tokens and repeats(self._tokens, self._asked):
                return self._last(fresh, place)
        return self._output.feed(fresh)

    def _last(self, fresh: Fresh, place: int) -> TextPiece:
        """The last piece, with what was held back of its text."""
        if place == len(fresh.token_ids) and fresh.finish_reason is not None:
            return self._output.feed(fresh)
        cut = replace(fresh, token_ids=fresh.token_ids[:place], logprobs=fresh.logprobs[:place], finish_reason="length")
        piece = self._output.feed(cut)
        if piece.finish_reason != "length":
            return piece
        return replace(piece, finish_reason="repetition", stop_reason=REPEATED)


def repeats(tokens: Sequence[int], asked: RepetitionDetection) -> bool:
    """Whether the last tokens are a pattern that is repeated as often as that."""
    for length in range(max(1, asked.min_pattern_size), asked.max_pattern_size + 1):
        if length * asked.min_count > len(tokens):
            return False
        # A text repeats a pattern where each token is the one a pattern earlier.
        span = length * (asked.min_count - 1)
        if all(tokens[-place] == tokens[-place - length] for place in range(1, span + 1)):
            return True
    return False
