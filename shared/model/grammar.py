"""What llguidance may use for one grammar, at the gateway that tries it and at the workers that apply it."""

from llguidance import LLParserLimits, LLTokenizer, TokenizerWrapper

MOST_GRAMMAR_BYTES = 64 << 10  # as a client sends it


def grammar_limits() -> LLParserLimits:
    """Limits by which a step of a grammar takes some 15 ms at most, and its states some 60 MiB."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=150_000,
        step_max_items=50_000,
        max_lexer_states=30_000,
        max_grammar_size=200_000,
        verbose_errors=False,  # they would show the grammar
    )


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
