"""What all objects of one answer share."""

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from livescale.services.gateway.envelope import Envelope, PromptTokensDetails, Usage
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
