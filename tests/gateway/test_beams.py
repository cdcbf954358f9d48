"""Beams: how they grow, and which of them is better."""

from livescale.services.gateway.beams import Beam, extended
from livescale.shared.messages.requests import TokenLogprobs


def test_beams_grow_by_their_likeliest_tokens() -> None:
    found = [TokenLogprobs(0.0, [(1, -1.0), (2, -3.0)]), TokenLogprobs(0.0, [(1, -0.5)])]
    grown = extended([Beam((7,), -1.0), Beam((8,), -2.0)], found, frozenset({2}))
    assert [(beam.tokens, beam.logprob, beam.ends) for beam in grown] == [
        ((7, 1), -2.0, False),
        ((8, 1), -2.5, False),
        ((7, 2), -4.0, True),
    ]


def test_a_penalty_decides_between_short_and_long_ones() -> None:
    short, long = Beam((1,), -2.0), Beam((1, 2, 3, 4), -4.0)
    assert short.score(1, 0) > long.score(1, 0)
    assert short.score(1, 2) < long.score(1, 2)
