"""What bodies say of sampling, as tokens and strings."""

from livescale.services.gateway.options import AnswerOptions, banned, spellings, stop_strings


def test_stop_strings_are_a_list() -> None:
    assert stop_strings(AnswerOptions()) == []
    assert stop_strings(AnswerOptions(stop="a")) == ["a"]
    assert stop_strings(AnswerOptions(stop=["a", "b"])) == ["a", "b"]


def test_a_bad_word_is_banned_at_the_beginning_and_within_a_text_as_in_vllm() -> None:
    assert spellings("  bad ") == ("bad ", " bad ")
    assert banned([5], [6]) == [[5], [6]]
    assert banned([5], [7, 5]) == [[5]]
    assert banned([5, 6], [5, 6]) == [[5, 6]]
    assert banned([], [7]) == []
