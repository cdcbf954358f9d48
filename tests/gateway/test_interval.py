"""Events of a stream have as many tokens as the client wants, and nothing is lost between them."""

from hypothesis import given
from hypothesis import strategies as st

from livescale.services.gateway.interval import EventInterval, joined
from livescale.services.gateway.output import TextPiece
from livescale.services.gateway.tool_calls.message import CallDelta
from livescale.shared.messages.requests import TokenLogprobs

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
