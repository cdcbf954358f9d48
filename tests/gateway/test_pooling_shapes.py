"""Bodies of requests for vectors and scores: what is refused by its bounds, and what is the default."""

from typing import Any

import msgspec
import pytest

from livescale.services.gateway.pooling_shapes import EmbeddingRequest, PoolingRequest, RerankRequest, ScoreRequest


@pytest.mark.parametrize("input", ["a", ["a", "b"], [1, 2, 3], [[1, 2], [3]]])
def test_an_input_is_a_text_texts_or_token_ids(input: object) -> None:
    assert msgspec.convert({"input": input}, EmbeddingRequest).input == input


@pytest.mark.parametrize(
    ("type", "body", "path"),
    [
        (EmbeddingRequest, {}, "input"),
        (EmbeddingRequest, {"input": [-1]}, r"\$\.input"),
        (EmbeddingRequest, {"input": "a", "dimensions": 0}, r"\$\.dimensions"),
        (EmbeddingRequest, {"input": "a", "encoding_format": "int8"}, r"\$\.encoding_format"),
        (PoolingRequest, {"input": "a", "truncate_prompt_tokens": -2}, r"\$\.truncate_prompt_tokens"),
        (PoolingRequest, {"input": "a", "truncation_side": "middle"}, r"\$\.truncation_side"),
        (PoolingRequest, {"input": "a", "cache_salt": ""}, r"\$\.cache_salt"),
        (ScoreRequest, {"text_1": "a"}, "text_2"),
        (RerankRequest, {"query": "a", "documents": []}, r"\$\.documents"),
        (RerankRequest, {"query": "a", "documents": ["b"], "top_n": -1}, r"\$\.top_n"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(type: type[msgspec.Struct], body: dict[str, Any], path: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=path):
        msgspec.convert(body, type)


def test_by_default_a_text_is_whole_its_vector_a_list_and_all_documents_are_told() -> None:
    vector = msgspec.convert({"input": "a"}, EmbeddingRequest)
    assert (vector.truncate_prompt_tokens, vector.add_special_tokens, vector.dimensions) == (None, True, None)
    assert (vector.encoding_format, vector.normalize) == ("float", None)
    ranking = msgspec.convert({"query": "a", "documents": ["b"]}, RerankRequest)
    assert (ranking.top_n, ranking.return_documents) == (0, True)
