"""The text of tokens by a checkpoint's tokenizer; that of single ones is kept.

A stream decodes each token twice: behind those before it, and alone. The second time costs as much as the first.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

from tokenizers import Tokenizer

MOST_TOKENS = 16_384  # the frequent ones of any vocabulary

TextOf = Callable[[Sequence[int], bool], str]  # of tokens; the flag leaves special ones out


def text_of(tokenizer: Tokenizer) -> TextOf:
    """What decodes by this tokenizer."""

    @lru_cache(maxsize=MOST_TOKENS)
    def one(token_id: int, skip_special: bool) -> str:
        return several((token_id,), skip_special)

    def several(token_ids: Sequence[int], skip_special: bool) -> str:
        text: str = tokenizer.decode(token_ids, skip_special_tokens=skip_special)
        return text

    def decode(token_ids: Sequence[int], skip_special: bool) -> str:
        return one(token_ids[0], skip_special) if len(token_ids) == 1 else several(token_ids, skip_special)

    return decode
