"""What llguidance may use for one grammar, at the gateway that tries it and at the workers that apply it."""

import re
from typing import Literal

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

GrammarKind = Literal["json", "regex", "choice", "grammar"]  # how a client writes it
MOST_GRAMMAR_BYTES = 64 << 10  # as a client sends it
NOT_SHOWN = "<non-verbose/>"  # where llguidance would show the grammar
EXCERPT = re.compile(r"\s+(\d+ \| .*|\^)")  # a line of the grammar, or a mark below one
# What llguidance says by words of its own, and what it means for the grammar's author.
PLAINLY = {
    "NoExtensionBias": "no answer can meet it",
    "coerce_one_of": "alternatives of oneOf may overlap; give each a required property of one value, or use anyOf",
}


def grammar_limits() -> LLParserLimits:
    """Limits by which a step of a grammar takes some 15 ms at most, and its states some 60 MiB."""
    return LLParserLimits(
        initial_lexer_fuel=100_000,  # schemas of 64 KiB take up to half; the time of a first mask grows with it
        step_lexer_fuel=150_000,
        step_max_items=50_000,
        max_lexer_states=30_000,
        max_grammar_size=200_000,
        verbose_errors=False,  # they would show the grammar
    )


def failure_of(matcher: LLMatcher) -> str:
    """Return why llguidance gave up on a grammar, on one line. It has its place there, and not the lines of the
    grammar: of those for tools the client knows nothing."""
    lines = (line for line in matcher.get_error().replace(NOT_SHOWN, "").splitlines() if not EXCERPT.fullmatch(line))
    reason = " ".join(" ".join(lines).split())
    return next((ours for theirs, ours in PLAINLY.items() if theirs in reason), reason)


class _Bytes:
    """A vocabulary of all bytes and an end, in which any text can be written."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def byte_tokenizer() -> LLTokenizer:
    """The tokenizer of a grammar that is tried without its model."""
    return LLTokenizer(TokenizerWrapper(_Bytes()))
