"""Answers with vectors and scores, as OpenAI, vLLM, Jina and Cohere have them."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

Vector = list[float] | str  # base64


class PoolingUsage(msgspec.Struct, frozen=True):
    """The numbers of tokens of all inputs together."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of one input, with the input's place in the request."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: Vector


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /v1/embeddings: the vectors of all inputs, in order."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Embedding]
    usage: PoolingUsage


class Pooled(msgspec.Struct, frozen=True, kw_only=True):
    """What the model makes of one input: its vector, or its scores."""

    object: Literal["pooling"] = "pooling"
    index: int
    data: Vector


class PooledList(msgspec.Struct, frozen=True, kw_only=True):
    """What the model makes of all inputs, in order."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Pooled]
    usage: PoolingUsage


class Class(msgspec.Struct, frozen=True, kw_only=True):
    """The likelihood of each label of one input, in the order of the checkpoint's id2label, and the likeliest label."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classes(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /classify: the labels of all inputs, in order."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Class]
    usage: PoolingUsage


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How well one pair of texts fits, with the pair's place in the request."""

    object: Literal["score"] = "score"
    index: int
    score: float


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /score: the scores of all pairs, in order."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: PoolingUsage


class RankedDocument(msgspec.Struct, frozen=True):
    """The text of a document, where a request wants it back."""

    text: str


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """One document: its place in the request, and how well it fits the query."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /rerank: the documents, the best first."""

    id: str
    model: str
    usage: PoolingUsage
    results: list[Ranked]
