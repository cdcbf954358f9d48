"""From tokens to a choice's text: nothing is taken back, and stop strings are found wherever the text is cut."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from livescale.services.gateway.output import (
    REPLACEMENT,
    Decode,
    Detokenizer,
    StopScanner,
    TextEnds,
    TextOutput,
    TextPiece,
    certain_part,
)
from livescale.services.gateway.progress import Fresh
from livescale.shared.messages.requests import TokenLogprobs
from tests.checkpoints import tiny_checkpoint, token_id

TEXTS = st.lists(
    st.sampled_from(["a", " word", "ñ", "語", "🙂", "👩‍👩‍👧", " ", "\n", "…", "Ω", "क्षि"]) | st.text(max_size=6)
).map("".join)

LETTERS = st.text("ab ", max_size=30)
STOPS = st.lists(st.text("ab ", min_size=1, max_size=4), min_size=1, max_size=4)


@cache
def byte_level() -> Tokenizer:
    return Tokenizer.from_file(str(tiny_checkpoint("llama") / "tokenizer.json"))


@cache
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


def decoder(tokenizer: Tokenizer) -> Decode:
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=True)


def pieces(decode: Decode, ids: Sequence[int], context: Sequence[int] = ()) -> list[str]:
    detokenizer = Detokenizer(decode, context)
    return [*[detokenizer.feed(id) for id in ids], detokenizer.flush()]


@given(st.lists(st.deferred(lambda: st.integers(0, byte_level().get_vocab_size() - 1)), max_size=120))
@settings(max_examples=60)
def test_random_tokens_give_the_text_of_the_whole(ids: list[int]) -> None:
    decode = decoder(byte_level())
    assert "".join(pieces(decode, ids)) == decode(ids)


@given(st.lists(st.integers(0, 255), max_size=120))
@settings(max_examples=60)
def test_random_bytes_give_the_text_of_the_whole(values: list[int]) -> None:
    """Nearly everything is broken UTF-8: the worst case for what may be emitted."""
    alphabet = sorted(id for token, id in byte_level().get_vocab().items() if len(token) == 1)
    decode, ids = decoder(byte_level()), [alphabet[value] for value in values]
    assert "".join(pieces(decode, ids)) == decode(ids)


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
@given(text=TEXTS)
@settings(max_examples=60)
def test_texts_come_back_and_no_character_is_torn(make: Callable[[], Tokenizer], text: str) -> None:
    tokenizer = make()
    decode = decoder(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    found = pieces(decode, ids)
    assert "".join(found) == decode(ids)
    assert REPLACEMENT in text or not any(REPLACEMENT in piece for piece in found)


def test_a_character_comes_with_its_last_byte() -> None:
    decode = decoder(byte_level())
    smile = [token_id(byte_level(), char) for char in "ðŁĻĤ"]
    assert decode(smile) == "🙂"
    assert pieces(decode, smile) == ["", "", "", "🙂", ""]


def test_the_end_of_a_text_that_is_out_is_not_decoded_again() -> None:
    decodes = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal decodes
        decodes += 1
        return byte_level().decode(ids)

    detokenizer = Detokenizer(decode)
    assert [detokenizer.feed(token_id(byte_level(), char)) for char in "abc"] == ["a", "b", "c"]
    before = decodes
    assert (detokenizer.flush(), decodes) == ("", before)


def test_an_unfinished_character_at_the_end_is_a_replacement_character() -> None:
    smile = [token_id(byte_level(), char) for char in "ðŁĻĤ"]
    assert pieces(decoder(byte_level()), smile[:2]) == ["", "", REPLACEMENT]


def test_a_first_word_keeps_its_space_behind_a_prompt() -> None:
    """Decoders drop the space of a text's first word; behind a prompt it is not the first."""
    ids = [token_id(sentencepiece(), "▁word")]
    assert "".join(pieces(decoder(sentencepiece()), ids)) == "word"
    assert "".join(pieces(decoder(sentencepiece()), ids, context=[token_id(sentencepiece(), "▁a")])) == " word"


def test_bytes_that_never_make_a_character_cost_no_more_with_time() -> None:
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return byte_level().decode(ids)

    broken = token_id(byte_level(), "Ŀ")  # a byte that begins nothing
    assert "".join(pieces(decode, [broken] * 500)) == REPLACEMENT * 500
    assert longest < 40


def first_stop(text: str, stops: list[str]) -> int | None:
    """Where the text is cut: the stop string complete first, and of those the one that began first."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return min(starts)
    return None


@given(LETTERS, STOPS, st.sets(st.integers(0, 30)))
def test_the_result_does_not_depend_on_the_cuts(text: str, stops: list[str], cuts: set[int]) -> None:
    scanner = StopScanner(stops)
    emitted, stopped = "", False
    for start, end in pairwise(sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})):
        scanned = scanner.feed(text[start:end])
        emitted += scanned.text
        stopped = scanned.stop is not None
        if stopped:
            break
    expected = first_stop(text, stops)
    assert stopped == (expected is not None)
    assert emitted + ("" if stopped else scanner.flush()) == text[:expected]


@given(LETTERS, STOPS)
def test_only_what_may_begin_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    scanned = StopScanner(stops).feed(text)
    if scanned.stop is None:
        held = text[len(scanned.text) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_without_stop_strings_everything_passes() -> None:
    assert StopScanner([]).feed("abc").text == "abc"


def letters(ids: Sequence[int]) -> str:
    return "".join(chr(id) for id in ids)


def ids(text: str) -> tuple[int, ...]:
    return tuple(ord(char) for char in text)


def test_a_stop_string_cuts_text_and_tokens_where_it_is_complete() -> None:
    output = TextOutput(letters, [], TextEnds(["cd"]))
    assert output.feed(Fresh(ids("abc"))) == TextPiece("ab", ids("abc"))
    assert output.feed(Fresh(ids("defg"))) == TextPiece("", ids("d"), "stop", "cd")


def test_text_held_back_comes_with_the_end() -> None:
    output = TextOutput(letters, [], TextEnds(["cd"]))
    assert output.feed(Fresh(ids("abc"))).text == "ab"
    assert output.feed(Fresh((), "length")) == TextPiece("c", (), "length")


def test_no_stop_string_counts_before_min_tokens() -> None:
    output = TextOutput(letters, [], TextEnds(["b"], min_tokens=3))
    assert output.feed(Fresh(ids("abab"))) == TextPiece("aba", ids("abab"), "stop", "b")


def test_the_stop_token_is_no_part_of_the_text() -> None:
    output = TextOutput(letters, [], TextEnds(tokens=ids("$")))
    assert output.feed(Fresh(ids("ab$"), "stop")) == TextPiece("ab", ids("ab$"), "stop")
    assert TextOutput(letters, []).feed(Fresh(ids("ab$"), "length")).text == "ab$"


def test_the_clients_stop_token_is_told_and_the_checkpoints_is_not() -> None:
    ends = TextEnds(tokens=ids("$#"), named=ids("$"))
    assert TextOutput(letters, [], ends).feed(Fresh(ids("a$"), "stop")).stop_reason == ord("$")
    assert TextOutput(letters, [], ends).feed(Fresh(ids("a#"), "stop")).stop_reason is None


def test_what_ends_the_text_is_kept_where_it_is_asked_for() -> None:
    ends = TextEnds(["cd"], ids("$"), ids("$"), kept=True)
    output = TextOutput(letters, [], ends)
    assert [output.feed(Fresh(ids(part))).text for part in ("ab", "c", "de")] == ["ab", "", "cd"]
    assert TextOutput(letters, [], ends).feed(Fresh(ids("a$"), "stop")).text == "a$"


def test_log_probabilities_stay_with_their_tokens() -> None:
    told = tuple(TokenLogprobs(-float(number)) for number in range(4))
    piece = TextOutput(letters, [], TextEnds(["b"])).feed(Fresh(ids("abcd"), logprobs=told))
    assert (piece.token_ids, piece.logprobs) == (ids("ab"), told[:2])
    piece = TextOutput(letters, [], TextEnds(tokens=ids("$"))).feed(Fresh(ids("abc$"), "stop", logprobs=told))
    assert (piece.text, piece.logprobs) == ("abc", told)


@given(st.text("abc", max_size=20), st.lists(st.integers(1, 4), min_size=1))
def test_frames_of_any_size_give_the_same_answer(text: str, sizes: list[int]) -> None:
    def answer(cuts: list[int]) -> tuple[str, tuple[int, ...], str | None]:
        output, found, rest = TextOutput(letters, [], TextEnds(["bc", "caa"])), list[TextPiece](), ids(text)
        turn = 0
        while rest:
            size = cuts[turn % len(cuts)]
            found.append(output.feed(Fresh(rest[:size])))
            rest, turn = rest[size:], turn + 1
            if found[-1].finish_reason:
                break
        else:
            found.append(output.feed(Fresh((), "length")))
        tokens = tuple(token for piece in found for token in piece.token_ids)
        return "".join(piece.text for piece in found), tokens, found[-1].finish_reason

    assert answer(sizes) == answer([1])


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_the_reason_is_the_workers(reason: str) -> None:
    assert TextOutput(letters, []).feed(Fresh(ids("a"), reason)).finish_reason == reason  # type: ignore[arg-type]


def test_a_character_that_the_prompt_begins_comes_whole_or_not_at_all() -> None:
    decode = decoder(byte_level())
    smile, a = [token_id(byte_level(), char) for char in "ðŁĻĤ"], token_id(byte_level(), "a")
    assert pieces(decode, smile[2:], context=[a, *smile[:2]]) == ["", "🙂", ""]
    assert pieces(decode, [a, a], context=[a, *smile[:2]]) == ["a", "a", ""]
    assert pieces(decode, smile[2:3], context=smile[:2]) == ["", ""]
    assert pieces(decode, smile[:2], context=smile[:2]) == ["", "", REPLACEMENT]


@given(text=TEXTS, cut=st.integers(0, 40))
@settings(max_examples=60)
def test_a_prompt_that_is_shown_and_its_text_are_the_whole(text: str, cut: int) -> None:
    decode, ids = decoder(byte_level()), byte_level().encode(text, add_special_tokens=False).ids
    output = TextOutput(decode, ids[:cut], shown=True)
    told = [output.feed(Fresh((id,))).text for id in ids[cut:]] + [output.feed(Fresh((), "length")).text]
    assert certain_part(decode(ids[:cut])) + "".join(told) == decode(ids)
