"""From what workers make of texts to vectors and scores: their length, their bounds, their bytes."""

import base64
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.gateway.checkpoint_text import ModelUse
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.progress import Fresh
from livescale.services.gateway.vectors import (
    Floats,
    PooledOutput,
    cosine,
    embedding_of,
    likelihoods,
    vector_of,
    verdict,
    written,
)
from livescale.shared.messages.requests import TokenLogprobs

NUMBERS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8)
VECTORS = NUMBERS.map(np.array)
PLAIN, NORMALIZED = ModelUse(pooling="mean"), ModelUse(pooling="mean", normalized=True)


@given(NUMBERS)
def test_a_vector_reaches_the_client_in_the_bits_that_the_worker_made(numbers: list[float]) -> None:
    made = np.array(numbers, "<f4")
    vector = vector_of(TokenLogprobs(0.0, pooled=made.tobytes()))
    as_text = written(vector, "base64")
    assert isinstance(as_text, str)
    assert base64.b64decode(as_text) == made.tobytes()
    assert written(vector, "float") == made.tolist()


@given(VECTORS, st.data())
def test_a_vector_is_cut_first_and_then_scaled_to_length_one(made: Floats, data: st.DataObject) -> None:
    dimensions = data.draw(st.integers(1, len(made)))
    bare, scaled = embedding_of(made, PLAIN, dimensions), embedding_of(made, NORMALIZED, dimensions)
    assert bare.tolist() == made[:dimensions].tolist()
    if not bare.any():
        assert not scaled.any()
        return
    assert math.isclose(float(np.linalg.norm(scaled)), 1.0)
    assert np.allclose(scaled * np.linalg.norm(bare), bare)


def test_the_client_decides_over_the_checkpoint_whether_a_vector_is_scaled() -> None:
    made = np.array([3.0, 4.0])
    assert embedding_of(made, NORMALIZED, normalize=False).tolist() == [3.0, 4.0]
    assert np.allclose(embedding_of(made, PLAIN, normalize=True), [0.6, 0.8])


def test_more_dimensions_than_there_are_are_refused() -> None:
    with pytest.raises(ApiError, match="'dimensions' is 3; this model's vectors have 2") as refused:
        embedding_of(np.zeros(2), PLAIN, 3)
    assert (refused.value.status, refused.value.detail.param) == (400, "dimensions")


@given(NUMBERS)
def test_scores_are_likelihoods_in_the_order_of_the_models_numbers(numbers: list[float]) -> None:
    made = np.array(numbers)
    told = likelihoods(made, ModelUse(pooling="cls", labels=len(made)))
    assert ((told >= 0) & (told <= 1)).all()
    if len(made) > 1:
        assert math.isclose(float(told.sum()), 1.0)
    ordered = told[np.argsort(made)]
    assert (ordered[:-1] <= ordered[1:]).all()
    assert likelihoods(made, ModelUse(pooling="cls", labels=len(made), bare_scores=True)).tolist() == made.tolist()


def test_one_score_is_a_sigmoid() -> None:
    use = ModelUse(pooling="cls", labels=1)
    for score in (-2.0, 0.0, 3.0):
        [told] = likelihoods(np.array([score]), use)
        assert math.isclose(told, 1 / (1 + math.exp(-score)))


def test_each_of_independent_labels_has_the_likelihood_that_it_has_alone() -> None:
    made = np.array([-2.0, 3.0, 3.0])
    told = likelihoods(made, ModelUse(pooling="cls", labels=3, independent=True))
    assert told.tolist() == pytest.approx([1 / (1 + math.exp(-one)) for one in made])


@given(st.floats(-1000, 0), st.floats(-1000, 0))
def test_a_verdict_is_how_likely_yes_is_of_yes_and_no(no: float, yes: float) -> None:
    told = verdict(TokenLogprobs(0.0, [(1, no), (2, yes)]))
    turned = verdict(TokenLogprobs(0.0, [(1, yes), (2, no)]))
    assert 0 <= told <= 1
    assert math.isclose(told + turned, 1.0)
    assert (told > 0.5) == (yes > no) or math.isclose(told, 0.5)


@given(VECTORS, st.floats(0.5, 4.0))
def test_a_cosine_looks_at_directions_only(one: Floats, factor: float) -> None:
    if not one.any():
        assert cosine(one, one) == 0.0
        return
    assert math.isclose(cosine(one, factor * one), 1.0)
    assert math.isclose(cosine(one, -factor * one), -1.0)
    assert cosine(one, np.zeros_like(one)) == 0.0


def test_the_vector_of_a_request_is_kept_though_its_end_is_told_later() -> None:
    output, told = PooledOutput(), TokenLogprobs(0.0, pooled=b"\0\0\x80\x3f")
    assert output.feed(Fresh((1,), logprobs=(told,))).finish_reason is None
    assert output.feed(Fresh((), "length")).finish_reason == "length"
    assert output.told == told
