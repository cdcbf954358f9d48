"""Bodies of requests for vectors and scores, and what answers them: names, types and bounds as OpenAI, vLLM, Jina and
Cohere have them."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from livescale.services.gateway.options import RequestPriority, RequestTimeout
from livescale.shared.messages.message import TokenId

Texts = Annotated[
    str | list[str | TokenId | list[TokenId]],
    Meta(description="A text, a list of texts, the token ids of a text, or a list of those"),
]
Some = str | list[str]


class PoolingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What all endpoints that pool understand. A parameter that is null is the same as one that is absent."""

    model: Annotated[str, Meta(description="A registered model; may be left out where there is only one")] = ""
    truncate_prompt_tokens: Annotated[
        Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None,
        Meta(description="Cut a text to this many tokens; -1: to as many as the context has room for"),
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"], Meta(description="Where a text is cut: its beginning, or its end")
    ] = "right"
    add_special_tokens: Annotated[bool, Meta(description="Begin and end a text as the tokenizer does")] = True
    cache_salt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1024)] | None,
        Meta(description="Share KV of texts that begin alike with requests of this salt and API key only"),
    ] = None
    priority: RequestPriority = 0
    timeout: RequestTimeout = None


class InputRequest(PoolingOptions, frozen=True, kw_only=True):
    """What endpoints understand that make something of each input by itself."""

    input: Texts


class ImageUrl(msgspec.Struct, frozen=True, kw_only=True):
    """An image, as a data URL in base64: no other URL is fetched."""

    url: str
    detail: Annotated[str | None, Meta(description="Accepted and ignored")] = None


class ImagePart(msgspec.Struct, frozen=True, kw_only=True):
    """The only part of an ImageMessage: its image."""

    type: Literal["image_url"]
    image_url: ImageUrl


class ImageMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a chat whose content is one image and no text."""

    role: Literal["user"]
    content: Annotated[list[ImagePart], Meta(min_length=1, max_length=1)]


class ClassifyRequest(PoolingOptions, frozen=True, kw_only=True):
    """POST /classify: how likely each label is of each input. Models of images take data URLs in base64, as `input` or,
    one of them, in `messages`."""

    input: Annotated[
        Texts | None,
        Meta(description="A text, a list of texts, the token ids of a text, or a list of those; data URLs of images"),
    ] = None
    messages: Annotated[
        Annotated[list[ImageMessage], Meta(min_length=1, max_length=1)] | None,
        Meta(description="One image in the form of a chat, in place of input"),
    ] = None
    use_activation: Annotated[
        bool | None, Meta(description="With false, the model's raw outputs are returned instead of probabilities")
    ] = None


class PoolingRequest(InputRequest, frozen=True, kw_only=True):
    """POST /pooling: the vector of each input, or its scores where the model gives scores."""

    encoding_format: Annotated[
        Literal["float", "base64"], Meta(description="base64: of little-endian float32 numbers")
    ] = "float"
    normalize: Annotated[
        bool | None, Meta(description="Scale vectors to the length 1; by default as the checkpoint says")
    ] = None


class EmbeddingRequest(PoolingRequest, frozen=True, kw_only=True):
    """POST /v1/embeddings: the vector of each input."""

    dimensions: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Keep this many numbers of a vector, for models that were trained for it (Matryoshka)"),
    ] = None


class ScoreRequest(PoolingOptions, frozen=True, kw_only=True):
    """POST /score: how well texts fit each other. One text_1 is compared with each text_2; several with as many."""

    text_1: Annotated[Some, Meta(description="A query, or one for each text_2")]
    text_2: Annotated[Some, Meta(description="A document, or several")]


class RerankRequest(PoolingOptions, frozen=True, kw_only=True):
    """POST /rerank: documents in the order in which they fit a query."""

    query: str
    documents: Annotated[list[str], Meta(description="The texts to be ordered", min_length=1)]
    top_n: Annotated[int, Meta(description="Return this many of the best; 0 is all", ge=0)] = 0
    return_documents: Annotated[bool, Meta(description="Return the texts of the documents")] = True


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
