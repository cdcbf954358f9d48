"""Vectors and scores as OpenAI's client and others ask for them."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from livescale.services.gateway.pooling_api import MOST_INPUTS
from livescale.shared.messages.requests import Submit, TokenLogprobs
from tests.checkpoints import pooling_checkpoint
from tests.gateway.conftest import ServedGateway, serve_gateway
from tests.gateway.reports import CONTEXT_TOKENS


def vector(request: Submit) -> list[TokenLogprobs]:
    """Four numbers that depend on the prompt."""
    numbers = [float(len(request.prompt)), *map(float, request.prompt[-1:]), -1.0, 2.0]
    return [TokenLogprobs(0.0, pooled=np.array(numbers, "<f4").tobytes())]


def one_score(request: Submit) -> list[TokenLogprobs]:
    return [TokenLogprobs(0.0, pooled=np.array([len(request.prompt) / 8 - 1], "<f4").tobytes())]


@pytest.fixture
async def embedder(tmp_path: Path) -> AsyncIterator[ServedGateway]:
    async with serve_gateway(pooling_checkpoint("qwen2", tmp_path)) as opened:
        opened.cluster.pooled = vector
        yield opened


@pytest.fixture
async def judge(tmp_path: Path) -> AsyncIterator[ServedGateway]:
    config = {"architectures": ["Qwen2ForSequenceClassification"], "id2label": {"0": "fits"}}
    async with serve_gateway(pooling_checkpoint("qwen2", tmp_path, config=config)) as opened:
        opened.cluster.pooled = one_score
        yield opened


async def test_openai_s_client_gets_vectors_in_the_order_of_its_texts(embedder: ServedGateway) -> None:
    """It asks for base64, and decodes it."""
    answer = await embedder.client.embeddings.create(model="tiny", input=["abc", "abc def"])
    assert [one.index for one in answer.data] == [0, 1]
    sent = embedder.cluster.submitted
    assert [(one.max_tokens, one.sampling.pools, one.stop_token_ids) for one in sent] == [(1, True, [])] * 2
    for one, request in zip(answer.data, sent, strict=True):
        expected = np.array([len(request.prompt), request.prompt[-1], -1, 2])
        assert one.embedding == pytest.approx(expected / np.sqrt(expected @ expected), abs=1e-6)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(one.prompt) for one in sent)


async def test_vectors_are_cut_before_they_are_scaled(embedder: ServedGateway) -> None:
    body = {"input": [7, 8, 9], "dimensions": 2, "encoding_format": "float"}
    _, answer = await embedder.post("/v1/embeddings", body)
    assert answer["data"][0]["embedding"] == pytest.approx([3 / np.sqrt(90), 9 / np.sqrt(90)])
    _, answer = await embedder.post("/v1/embeddings", {**body, "normalize": False, "encoding_format": "base64"})
    assert np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4").tolist() == [3, 9]


async def test_lists_of_token_ids_are_texts_of_their_own(embedder: ServedGateway) -> None:
    _, answer = await embedder.post("/pooling", {"input": [[1, 2], [3]]})
    assert [one["object"] for one in answer["data"]] == ["pooling"] * 2
    assert [one.prompt for one in embedder.cluster.submitted] == [[1, 2], [3]]


async def test_more_texts_than_run_at_once_are_all_answered(embedder: ServedGateway) -> None:
    status, answer = await embedder.post("/v1/embeddings", {"input": [[1 + n % 50] for n in range(200)]})
    assert status == 200
    assert [one["index"] for one in answer["data"]] == list(range(200))


async def test_a_request_that_loses_its_worker_is_asked_again(embedder: ServedGateway) -> None:
    embedder.cluster.lost_at = {1: 0}
    status, answer = await embedder.post("/v1/embeddings", {"input": "abc", "dimensions": 1})
    assert (status, len(answer["data"])) == (200, 1)
    assert len(embedder.cluster.submitted) == 2


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"input": "a", "dimensions": 5}, "dimensions", "this model's vectors have 4"),
        ({"input": []}, "input", "must be one text"),
        ({"input": [[]]}, "input", "has a text without tokens"),
        ({"input": [[999_999]]}, "input", "token id 999999"),
        ({"input": ["a"] * (MOST_INPUTS + 1)}, "input", f"at most {MOST_INPUTS}"),
        ({"input": [[1] * 5_000]}, "input", "give 'truncate_prompt_tokens'"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "Invalid enum value"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype", "Vectors are float32"),
        ({"messages": []}, "messages", "Give texts or token ids in input"),
    ],
)
async def test_what_cannot_be_answered_is_refused_by_name(
    embedder: ServedGateway, body: dict[str, Any], param: str, said: str
) -> None:
    status, answer = await embedder.post("/v1/embeddings", body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert said in answer["error"]["message"]


async def test_a_text_that_is_too_long_is_cut_where_the_client_says_so(embedder: ServedGateway) -> None:
    for side, kept in (("right", [1, 2]), ("left", [3, 4])):
        body = {"input": [1, 2, 3, 4], "truncate_prompt_tokens": 2, "truncation_side": side}
        await embedder.post("/v1/embeddings", body)
        assert embedder.cluster.submitted[-1].prompt == kept
    await embedder.post("/v1/embeddings", {"input": [1] * 5_000, "truncate_prompt_tokens": -1})
    assert len(embedder.cluster.submitted[-1].prompt) == CONTEXT_TOKENS


async def test_each_kind_of_model_is_asked_for_what_it_does(served: ServedGateway, embedder: ServedGateway) -> None:
    with pytest.raises(openai.BadRequestError, match="makes vectors and generates no text; use /v1/embeddings"):
        await embedder.client.completions.create(model="tiny", prompt="a")
    with pytest.raises(openai.BadRequestError, match="makes vectors and generates no text"):
        await embedder.client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a"}])
    with pytest.raises(openai.BadRequestError, match="generates text and makes no vectors; use /v1/completions"):
        await served.client.embeddings.create(model="tiny", input="a")
    status, answer = await served.post("/score", {"text_1": "a", "text_2": "b"})
    assert (status, answer["error"]["code"]) == (400, "wrong_use_of_model")
    assert "classifier_from_token" in answer["error"]["message"]


async def test_vectors_are_compared_by_their_angle(embedder: ServedGateway) -> None:
    _, answer = await embedder.post("/score", {"text_1": "abc", "text_2": ["abc", "abc def"]})
    first, second = (one["score"] for one in answer["data"])
    assert first == pytest.approx(1.0)
    assert second < 1.0
    assert len(embedder.cluster.submitted) == 2  # each text once


async def test_a_model_with_one_label_scores_pairs_and_orders_documents(judge: ServedGateway) -> None:
    """A pair is one prompt, and its score lies between 0 and 1."""
    documents = ["abc", "abc def ghi jkl", "abc def"]
    _, scored = await judge.post("/v1/score", {"text_1": "query", "text_2": documents})
    prompts = [judge.tokenizer.encode("query", one).ids for one in documents]
    assert sorted(one.prompt for one in judge.cluster.submitted) == sorted(prompts)
    expected = [1 / (1 + np.exp(1 - len(prompt) / 8)) for prompt in prompts]
    assert [one["score"] for one in scored["data"]] == pytest.approx(expected)
    _, ranked = await judge.post("/v2/rerank", {"query": "query", "documents": documents, "top_n": 2})
    assert [(one["index"], one["document"]["text"]) for one in ranked["results"]] == [
        (1, documents[1]),
        (2, documents[2]),
    ]
    assert ranked["usage"]["total_tokens"] == sum(map(len, prompts))
    _, bare = await judge.post("/rerank", {"query": "query", "documents": documents, "return_documents": False})
    assert "document" not in bare["results"][0]


def three_scores(request: Submit) -> list[TokenLogprobs]:
    """The second label is the likeliest of a prompt of one token, else the third."""
    return [TokenLogprobs(0.0, pooled=np.array([-1.0, 2.0, len(request.prompt)], "<f4").tobytes())]


@asynccontextmanager
async def classifier(to: Path, **config: Any) -> AsyncIterator[ServedGateway]:
    labels = {"architectures": ["Qwen2ForSequenceClassification"], "id2label": {"0": "bad", "1": "fair", "2": "good"}}
    async with serve_gateway(pooling_checkpoint("qwen2", to, config=labels | config)) as opened:
        opened.cluster.pooled = three_scores
        yield opened


async def test_a_classifier_names_the_likeliest_label_of_each_text(tmp_path: Path) -> None:
    async with classifier(tmp_path) as served:
        status, answer = await served.post("/classify", {"input": [[5], [5, 6, 7]]})
        assert (status, answer["object"], answer["usage"]) == (200, "list", {"prompt_tokens": 4, "total_tokens": 4})
        assert [(one["index"], one["label"], one["num_classes"]) for one in answer["data"]] == [
            (0, "fair", 3),
            (1, "good", 3),
        ]
        powers = np.exp([-1.0, 2.0, 3.0])
        assert answer["data"][1]["probs"] == pytest.approx(powers / powers.sum())
        _, bare = await served.post("/v1/classify", {"input": [5], "use_activation": False})
        assert (bare["data"][0]["label"], bare["data"][0]["probs"]) == ("fair", [-1, 2, 1])


@pytest.mark.parametrize(
    ("config", "probs", "label"),
    [
        ({"problem_type": "multi_label_classification"}, [1 / (1 + np.exp(-one)) for one in (-1, 2, 3)], "good"),
        ({"problem_type": "regression"}, [-1, 2, 3], "good"),
        ({"id2label": {"0": "bad", "1": "fair", "x": "good"}}, [0.0132, 0.2654, 0.7214], "LABEL_2"),
    ],
)
async def test_scores_are_told_as_the_model_was_trained(
    config: dict[str, Any], probs: list[float], label: str, tmp_path: Path
) -> None:
    async with classifier(tmp_path, **config) as served:
        _, answer = await served.post("/classify", {"input": [5, 6, 7]})
        assert answer["data"][0]["label"] == label
        assert answer["data"][0]["probs"] == pytest.approx(probs, abs=1e-4)


async def test_models_without_labels_classify_nothing(served: ServedGateway, embedder: ServedGateway) -> None:
    for gateway, said in ((served, "use /v1/completions"), (embedder, "has no labels; use /v1/embeddings")):
        status, answer = await gateway.post("/classify", {"input": "a"})
        assert (status, answer["error"]["code"]) == (400, "wrong_use_of_model")
        assert said in answer["error"]["message"]


async def test_texts_that_do_not_pair_up_are_refused(judge: ServedGateway) -> None:
    status, answer = await judge.post("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]})
    assert (status, answer["error"]["param"]) == (400, "text_1")
    status, answer = await judge.post("/rerank", {"query": "a", "documents": []})
    assert (status, answer["error"]["param"]) == (400, "documents")


async def test_a_generating_model_judges_by_two_of_its_tokens(tmp_path: Path) -> None:
    config = {"classifier_from_token": ["a", "b"]}
    async with serve_gateway(pooling_checkpoint("qwen2", tmp_path, config=config)) as served:
        no, yes = (served.tokenizer.token_to_id(word) for word in "ab")
        assert no is not None
        assert yes is not None
        served.cluster.pooled = lambda request: [TokenLogprobs(-1.0, [(no, -2.0), (yes, -0.5)])]
        _, answer = await served.post("/score", {"text_1": "q", "text_2": "d"})
        assert answer["data"][0]["score"] == pytest.approx(1 / (1 + np.exp(-1.5)))
        assert served.cluster.submitted[0].sampling.logprob_token_ids == [no, yes]
        assert (await served.client.completions.create(model="tiny", prompt="a")).choices


async def test_a_judge_whose_words_are_no_tokens_is_named(tmp_path: Path) -> None:
    config = {"classifier_from_token": ["a", "no such token"]}
    async with serve_gateway(pooling_checkpoint("qwen2", tmp_path, config=config)) as served:
        status, answer = await served.post("/score", {"text_1": "q", "text_2": "d"})
        assert status == 500
        assert "classifier_from_token: the tokenizer has no token 'no such token'" in answer["error"]["message"]
