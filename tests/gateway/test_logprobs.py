"""How log-probabilities look to clients: JSON without infinities, one entry a token, the token's own among them."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.gateway.logprobs import LEAST, PromptNames, TokenNames
from livescale.services.gateway.output import WholeChoice
from livescale.shared.messages.requests import TokenLogprobs

WORDS = ["a", "b", "a", "語", ""]  # two tokens may have one text
NAMES = TokenNames(WORDS.__getitem__)
IDS = st.integers(0, len(WORDS) - 1)
LOGPROBS = st.floats(max_value=0.0, allow_nan=False)  # a token that is ruled out has minus infinity
TOLD = st.builds(
    TokenLogprobs, LOGPROBS, st.lists(st.tuples(IDS, LOGPROBS), max_size=3, unique_by=lambda one: one[0]), IDS
)
ENTRIES = st.lists(st.tuples(IDS, TOLD), max_size=5)


@given(ENTRIES)
def test_a_chat_has_an_entry_for_each_token_with_the_bytes_of_its_text(
    entries: list[tuple[int, TokenLogprobs]],
) -> None:
    ids, told = [id for id, _ in entries], [one for _, one in entries]
    content = NAMES.of_chat(ids, told).content
    assert [one.token for one in content] == [WORDS[id] for id in ids]
    for entry, one in zip(content, told, strict=True):
        assert bytes(entry.bytes).decode() == entry.token
        assert entry.logprob == max(one.chosen, LEAST)
        assert [other.token for other in entry.top_logprobs] == [WORDS[id] for id, _ in one.top]
        assert all(other.logprob >= LEAST for other in entry.top_logprobs)


@given(ENTRIES, st.integers(0, 9))
def test_a_completion_has_lists_of_one_length_and_offsets_into_its_text(
    entries: list[tuple[int, TokenLogprobs]], offset: int
) -> None:
    ids, told = [id for id, _ in entries], [one for _, one in entries]
    lists = NAMES.of_completion(ids, told, offset)
    text = "." * offset + "".join(WORDS[id] for id in ids)
    assert len(lists.tokens) == len(lists.text_offset) == len(lists.token_logprobs) == len(lists.top_logprobs)
    for token, start in zip(lists.tokens, lists.text_offset, strict=True):
        assert text[start:].startswith(token)
    for token, top in zip(lists.tokens, lists.top_logprobs, strict=True):
        assert top is not None
        assert token in top
    assert NAMES.length(ids) == len(text) - offset


@given(ENTRIES)
def test_no_answer_has_a_number_that_json_does_not_have(entries: list[tuple[int, TokenLogprobs]]) -> None:
    ids, told = [id for id, _ in entries], [one for _, one in entries]
    for answer in (NAMES.of_chat(ids, told), NAMES.of_completion(ids, told), NAMES.of_prompt([0, *ids], told, 3)):
        assert b"null" not in msgspec.json.encode(answer).replace(b'"refusal":null', b"").removeprefix(b"[null")


def test_of_two_tokens_of_one_text_the_likelier_is_told() -> None:
    lists = NAMES.of_completion([2], [TokenLogprobs(-2.0, [(0, -1.0), (1, -1.5)])])
    assert lists.top_logprobs == [{"a": -1.0, "b": -1.5}]


def test_a_token_without_log_probability_has_null_in_a_completion_and_no_entry_in_a_chat() -> None:
    lists = NAMES.of_completion([0, 1], [None, TokenLogprobs(-1.0)])
    assert (lists.token_logprobs, lists.top_logprobs) == ([None, -1.0], [None, {"b": -1.0}])
    assert [one.token for one in NAMES.of_chat([0, 1], [None, TokenLogprobs(-1.0)]).content] == ["b"]


def test_a_prompt_has_its_own_tokens_first_with_their_ranks_and_so_many_of_the_likeliest() -> None:
    told = [TokenLogprobs(-3.0, [(1, -0.5), (3, -0.7), (4, -0.9)], rank=7), TokenLogprobs(-0.1, [(3, -0.1)], rank=1)]
    choice = WholeChoice([0, 2, 3], prompt_logprobs=told)
    first, second, third = PromptNames(NAMES, 2).of(choice)
    assert first is None
    assert second is not None
    assert [(id, one.rank, one.decoded_token) for id, one in second.items()] == [(2, 7, "a"), (1, 1, "b"), (3, 2, "語")]
    assert third is not None
    assert [(id, one.rank, one.logprob) for id, one in third.items()] == [(3, 1, -0.1)]
    assert PromptNames(NAMES, 2).of(WholeChoice([])) == []


def test_tokens_may_be_named_by_their_ids() -> None:
    named = TokenNames(WORDS.__getitem__, as_ids=True)
    assert named.of_completion([3], [TokenLogprobs(-1.0, [(1, -0.5)])]).top_logprobs == [
        {"token_id:1": -0.5, "token_id:3": -1.0}
    ]
    [entry] = named.of_chat([3], [TokenLogprobs(-1.0)]).content
    assert (entry.token, bytes(entry.bytes).decode()) == ("token_id:3", "語")
