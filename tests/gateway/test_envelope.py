"""What all objects of one answer share."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from livescale.services.gateway.envelope import Echo, Envelope, EventInterval, PromptTokensDetails, Usage, joined
from livescale.services.gateway.logprobs import PromptNames, TokenNames
from livescale.services.gateway.output import StopReason, TextPiece, WholeChoice
from livescale.services.gateway.tool_calls.message import CallDelta
from livescale.shared.messages.requests import TokenLogprobs

PLAIN = Envelope("id-1", 1_700_000_000, "tiny", token_ids=False, usage_follows=False)
NAMES = TokenNames(chr)
TOLD = TokenLogprobs(-1.0)


def test_usage_is_absent_unless_asked_for_null_until_the_end_and_so_far_where_it_is_continuous() -> None:
    so_far = Usage(2, 3, 5, PromptTokensDetails(1))
    assert PLAIN.usage is UNSET
    assert replace(PLAIN, usage_follows=True).usage is None
    assert replace(PLAIN, usage_follows=True, continuous=True).with_usage(so_far).usage == so_far


@pytest.mark.parametrize(
    ("text", "reasoning", "calls", "ended", "silent"),
    [
        ("", "", (), None, True),
        ("a", "", (), None, False),
        ("", "Hm", (), None, False),
        ("", "", (CallDelta(0, "call_0", "f", ""),), None, False),
        ("", "", (), "stop", False),
    ],
)
def test_a_piece_says_nothing_while_its_text_is_held_back(
    text: str, reasoning: str, calls: tuple[CallDelta, ...], ended: StopReason | None, silent: bool
) -> None:
    piece = TextPiece(text, (97,), ended, logprobs=(TOLD,), reasoning=reasoning, calls=calls)
    assert PLAIN.says_nothing(piece) == silent
    for asked in (replace(PLAIN, token_ids=True), replace(PLAIN, names=NAMES)):
        assert not asked.says_nothing(piece)


def test_what_a_client_did_not_ask_for_is_not_told() -> None:
    whole = WholeChoice([97, 98], prompt_logprobs=[TOLD])
    piece = TextPiece("c", (99,), logprobs=(TOLD,))
    assert PLAIN.ids(piece.token_ids) is None
    assert PLAIN.piece_ids(piece.token_ids) is UNSET
    assert PLAIN.chat_logprobs(piece) is None
    assert PLAIN.completion_logprobs(piece) is None
    assert PLAIN.prompt_logprobs(whole) is None
    asked = replace(PLAIN, token_ids=True, names=NAMES, prompt_names=PromptNames(NAMES, 0))
    assert asked.ids(piece.token_ids) == asked.piece_ids(piece.token_ids) == [99]
    told, of_prompt = asked.chat_logprobs(piece), asked.prompt_logprobs(whole)
    assert told is not None
    assert [one.token for one in told.content] == ["c"]
    assert isinstance(of_prompt, list)
    assert [entry and list(entry) for entry in of_prompt] == [None, [98]]


def test_log_probabilities_of_a_completion_begin_with_those_of_an_echoed_prompt() -> None:
    asked = replace(PLAIN, names=NAMES)
    told = asked.completion_logprobs(TextPiece("abc", (99,), logprobs=(None, TOLD, TOLD), echoed=(97, 98)), offset=4)
    assert told is not None
    assert (told.tokens, told.text_offset) == (["a", "b", "c"], [4, 5, 6])
    assert told.token_logprobs == [None, -1.0, -1.0]


SMILE = "🙂".encode()


def decode(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode(errors="replace")


def test_the_first_piece_alone_has_the_prompt_before_it() -> None:
    echo = Echo.of(decode, b"ab", None, alone=False)
    assert echo.first(TextPiece("c", (99,))).text == "abc"
    assert echo.later(TextPiece("d", (100,))) == TextPiece("d", (100,))


def test_a_character_that_the_prompt_begins_comes_with_the_answer_or_as_it_is() -> None:
    prompt = [*b"a", *SMILE[:2]]
    assert Echo.of(decode, prompt, None, alone=False).text == "a"
    assert Echo.of(decode, prompt, None, alone=True).text == decode(prompt)


def test_log_probabilities_begin_with_the_prompts_of_whose_first_token_nothing_is_known() -> None:
    told = TokenLogprobs(-1.0, [(1, -0.5), (2, -0.7), (3, -0.9)])
    generated = TokenLogprobs(-2.0)
    piece = TextPiece("c", (99,), logprobs=(generated,), prompt_logprobs=(told,))
    first = Echo.of(decode, b"ab", 2, alone=False).first(piece)
    assert first.echoed == tuple(b"ab")
    assert first.logprobs == (None, TokenLogprobs(-1.0, [(1, -0.5), (2, -0.7)]), generated)
    assert len(first.logprobs) == len(first.echoed) + len(first.token_ids)


@pytest.mark.parametrize(("ended", "told"), [(None, None), ("stop", "length"), ("length", "length")])
def test_nothing_follows_a_prompt_that_is_wanted_alone(ended: StopReason | None, told: StopReason | None) -> None:
    echo = Echo.of(decode, b"ab", None, alone=True)
    first = echo.first(TextPiece("c", (99,), ended, "c"))
    assert (first.text, first.token_ids, first.finish_reason, first.stop_reason) == ("ab", (), told, None)


SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=30)


def pieces(sizes: list[int]) -> list[TextPiece]:
    """Pieces of so many tokens each, of which the last ends the choice."""
    made, next_id = [], 0
    for size in sizes:
        ids = tuple(range(next_id, next_id + size))
        logprobs = tuple(TokenLogprobs(-float(id)) for id in ids)
        made.append(TextPiece("".join(chr(97 + id % 26) for id in ids), ids, logprobs=logprobs))
        next_id += size
    last = made.pop()
    return [*made, TextPiece(last.text, last.token_ids, "stop", "end", last.logprobs)]


@given(SIZES, st.integers(1, 5))
def test_events_say_what_the_pieces_say(sizes: list[int], interval: int) -> None:
    given, held = pieces(sizes), EventInterval(interval)
    sent = [piece for one in given if (piece := held.add(one)) is not None]
    assert joined(sent) == joined(given)
    assert sent[0] == given[0]
    assert all(len(piece.token_ids) >= interval for piece in sent[1:-1])


def test_an_interval_of_one_token_holds_nothing_back() -> None:
    given, held = pieces([1, 2, 1]), EventInterval(1)
    assert [held.add(piece) for piece in given] == given


def test_an_event_has_one_piece_of_a_call() -> None:
    named, more, other = CallDelta(0, "id", "f", "{"), CallDelta(0, None, None, "}"), CallDelta(1, "id2", "g", "{}")
    sent = joined([TextPiece("", (1,), calls=(named,)), TextPiece("", (2,), calls=(more, other))])
    assert sent.calls == (CallDelta(0, "id", "f", "{}"), other)
