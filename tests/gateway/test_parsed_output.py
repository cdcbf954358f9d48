"""The tokens of a choice become pieces of its message: content, reasoning and calls."""

from livescale.services.gateway.output import TextOutput, TextPiece, WholeChoice
from livescale.services.gateway.parsed_output import ParsedOutput, Telling, call_ids
from livescale.services.gateway.progress import Fresh
from livescale.services.gateway.tool_calls.formats import HERMES, THINK
from livescale.services.gateway.tool_calls.machine import Machine
from livescale.services.gateway.tool_calls.message import Calls
from livescale.shared.messages.requests import TokenLogprobs

ANSWER = '<think>Hm</think>\n\nOk.\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def decode(token_ids: object) -> str:
    return "".join(map(chr, token_ids))  # type: ignore[call-overload]


def output(telling: Telling | None = None) -> ParsedOutput:
    machines = [Machine(format, Calls({}, str)) for format in (THINK, HERMES)]
    return ParsedOutput(TextOutput(decode, []), machines, telling or Telling())


def fresh(text: str, *, last: bool) -> Fresh:
    logprobs = tuple(TokenLogprobs(-ord(letter) / 100, []) for letter in text)
    return Fresh(tuple(map(ord, text)), "stop" if last else None, logprobs=logprobs)


def whole(reader: ParsedOutput, size: int) -> WholeChoice:
    choice = WholeChoice([])
    for start in range(0, len(ANSWER), size):
        choice.add(reader.feed(fresh(ANSWER[start : start + size], last=start + size >= len(ANSWER))))
    return choice


def test_an_answer_is_the_same_however_many_tokens_come_at_once() -> None:
    for size in (1, 2, 7, len(ANSWER)):
        reader = output()
        choice = whole(reader, size)
        assert (choice.text, choice.reasoning, choice.finish_reason) == ("\n\nOk.", "Hm", "tool_calls")
        assert ["".join(piece.arguments for piece in call) for call in choice.calls] == ['{"a": 1}']
        assert reader.reasoning_tokens == len("Hm</think>")
        assert (decode(choice.token_ids), len(choice.logprobs)) == (ANSWER, len(ANSWER))


def test_a_client_is_told_what_it_wants() -> None:
    choice = whole(output(Telling(shown=False, called="stop")), 5)
    assert (choice.reasoning, choice.finish_reason) == ("", "stop")


def test_an_answer_that_is_cut_off_ends_for_that_reason() -> None:
    piece = output().feed(Fresh(tuple(map(ord, ANSWER)), "length"))
    assert piece.finish_reason == "length"
    assert [call.name for call in piece.calls] == ["f"]


def test_an_end_without_a_token_brings_what_was_held_back() -> None:
    reader = output()
    assert reader.feed(Fresh((ord("<"),))) == TextPiece("", (ord("<"),))
    assert reader.feed(Fresh((), "stop")) == TextPiece("<", (), "stop")


def test_ids_of_calls_are_always_the_same_and_all_different() -> None:
    ids = {
        call_ids(*key, short=False)(index)
        for key in (("a", [1], 0), ("b", [1], 0), ("a", [2], 0), ("a", [1], 1))
        for index in (0, 1)
    }
    assert len(ids) == 8
    assert call_ids("a", [1], 0, short=False)(0) in ids
    short = call_ids("a", [1], 0, short=True)(0)
    assert len(short) == 9
    assert short.isalnum()
