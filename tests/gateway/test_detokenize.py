"""Incremental detokenization gives the text of the whole, and takes nothing back."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from livescale.services.gateway.output import REPLACEMENT, Decode, Detokenizer
from tests.checkpoints import tiny_checkpoint, token_id

TEXTS = st.lists(
    st.sampled_from(["a", " word", "ñ", "語", "🙂", "👩‍👩‍👧", " ", "\n", "…", "Ω", "क्षि"]) | st.text(max_size=6)
).map("".join)


def byte_level() -> Tokenizer:
    return Tokenizer.from_file(str(tiny_checkpoint("llama") / "tokenizer.json"))


def sentencepiece() -> Tokenizer:
    """As Llama 2's: pieces with a mark for spaces, and bytes where there is no piece."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "a", "b", "▁word", "語"]
    tokenizer = Tokenizer(
        models.BPE({piece: id for id, piece in enumerate(pieces)}, [("▁", "a")], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


BYTE_LEVEL, SENTENCEPIECE = byte_level(), sentencepiece()


def decoder(tokenizer: Tokenizer) -> Decode:
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=True)


def pieces(decode: Decode, ids: Sequence[int], context: Sequence[int] = ()) -> list[str]:
    detokenizer = Detokenizer(decode, context)
    return [*[detokenizer.feed(id) for id in ids], detokenizer.flush()]


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=120))
@settings(max_examples=60)
def test_random_tokens_give_the_text_of_the_whole(ids: list[int]) -> None:
    decode = decoder(BYTE_LEVEL)
    assert "".join(pieces(decode, ids)) == decode(ids)


@given(st.lists(st.integers(0, 255), max_size=120))
@settings(max_examples=60)
def test_random_bytes_give_the_text_of_the_whole(values: list[int]) -> None:
    """Nearly everything is broken UTF-8: the worst case for what may be emitted."""
    alphabet = sorted(id for token, id in BYTE_LEVEL.get_vocab().items() if len(token) == 1)
    decode, ids = decoder(BYTE_LEVEL), [alphabet[value] for value in values]
    assert "".join(pieces(decode, ids)) == decode(ids)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])
@given(text=TEXTS)
@settings(max_examples=60)
def test_texts_come_back_and_no_character_is_torn(tokenizer: Tokenizer, text: str) -> None:
    decode = decoder(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    found = pieces(decode, ids)
    assert "".join(found) == decode(ids)
    assert REPLACEMENT in text or not any(REPLACEMENT in piece for piece in found)


def test_a_character_comes_with_its_last_byte() -> None:
    decode = decoder(BYTE_LEVEL)
    smile = [token_id(BYTE_LEVEL, char) for char in "ðŁĻĤ"]
    assert decode(smile) == "🙂"
    assert pieces(decode, smile) == ["", "", "", "🙂", ""]


def test_an_unfinished_character_at_the_end_is_a_replacement_character() -> None:
    smile = [token_id(BYTE_LEVEL, char) for char in "ðŁĻĤ"]
    assert pieces(decoder(BYTE_LEVEL), smile[:2]) == ["", "", REPLACEMENT]


def test_a_first_word_keeps_its_space_behind_a_prompt() -> None:
    """Decoders drop the space of a text's first word; behind a prompt it is not the first."""
    ids = [token_id(SENTENCEPIECE, "▁word")]
    assert "".join(pieces(decoder(SENTENCEPIECE), ids)) == "word"
    assert "".join(pieces(decoder(SENTENCEPIECE), ids, context=[token_id(SENTENCEPIECE, "▁a")])) == " word"


def test_bytes_that_never_make_a_character_cost_no_more_with_time() -> None:
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return BYTE_LEVEL.decode(ids)

    broken = token_id(BYTE_LEVEL, "Ŀ")  # a byte that begins nothing
    assert "".join(pieces(decode, [broken] * 500)) == REPLACEMENT * 500
    assert longest < 40
