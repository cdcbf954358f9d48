"""The endpoints for vectors, labels and scores: /v1/embeddings, /pooling, /classify, /score and /rerank."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.checkpoint_text import (
    check_classifies,
    check_embeds,
    check_pools,
    check_reads,
    check_scores,
)
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.openapi import GENERATION_ERRORS, Operation, Serve
from livescale.services.gateway.parse import T, parse_body, read_body
from livescale.services.gateway.pooling import Pooling
from livescale.services.gateway.pooling_prompts import Asked, PoolingPrompts
from livescale.services.gateway.pooling_shapes import (
    Class,
    Classes,
    ClassifyRequest,
    Embedding,
    EmbeddingRequest,
    Embeddings,
    Pooled,
    PooledList,
    PoolingRequest,
    PoolingUsage,
    Ranked,
    RankedDocument,
    Ranking,
    RerankRequest,
    Score,
    ScoreRequest,
    Scores,
    Texts,
)
from livescale.services.gateway.responses import json_answer, while_connected
from livescale.services.gateway.vectors import (
    Floats,
    cosine,
    embedding_of,
    likelihoods,
    listed,
    vector_of,
    verdict,
    written,
)
from livescale.shared.messages.requests import Sampling

MOST_INPUTS = 2_048  # OpenAI's limit
VECTOR = Sampling(pools=True)


@dataclass(frozen=True)
class PoolingApi:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError."""

    prompts: PoolingPrompts
    pooling: Pooling
    max_body_bytes: int

    async def embeddings(self, request: Request) -> Response:
        """Answer POST /v1/embeddings: a vector of each input."""
        body = await self._body(request, EmbeddingRequest)
        asked = await self.prompts.ask(request, body)
        check_embeds(asked.name, asked.text.use)
        made, usage = await while_connected(request.receive, self._inputs(asked, body.input))
        vectors = [embedding_of(one, asked.text.use, body.dimensions, body.normalize) for one in made]
        data = [
            Embedding(index=index, embedding=written(one, body.encoding_format)) for index, one in enumerate(vectors)
        ]
        id = asked.id.replace("req", "embd", 1)
        return json_answer(Embeddings(id=id, created=int(asked.wall), model=asked.name, data=data, usage=usage))

    async def pool(self, request: Request) -> Response:
        """Answer POST /pooling: vectors, or the likelihoods of labels."""
        body = await self._body(request, PoolingRequest)
        asked = await self.prompts.ask(request, body)
        check_pools(asked.name, asked.text.use)
        check_reads(asked.name, asked.text.use)
        made, usage = await while_connected(request.receive, self._inputs(asked, body.input))
        if asked.text.use.labels:
            told = [likelihoods(one, asked.text.use) for one in made]
        else:
            told = [embedding_of(one, asked.text.use, normalize=body.normalize) for one in made]
        data = [Pooled(index=index, data=written(one, body.encoding_format)) for index, one in enumerate(told)]
        id = asked.id.replace("req", "pool", 1)
        return json_answer(PooledList(id=id, created=int(asked.wall), model=asked.name, data=data, usage=usage))

    async def classify(self, request: Request) -> Response:
        """Answer POST /classify: the likelihoods of labels, and which is the likeliest."""
        body = await self._body(request, ClassifyRequest)
        asked = await self.prompts.ask(request, body)
        check_classifies(asked.name, asked.text.use)
        made, usage = await while_connected(request.receive, self._classified(asked, body))
        data = []
        for index, one in enumerate(made):
            label = asked.text.use.label_names[int(one.argmax())]
            probs = one if body.use_activation is False else likelihoods(one, asked.text.use)
            data.append(Class(index=index, label=label, probs=listed(probs), num_classes=len(probs)))
        id = asked.id.replace("req", "classify", 1)
        return json_answer(Classes(id=id, created=int(asked.wall), model=asked.name, data=data, usage=usage))

    async def score(self, request: Request) -> Response:
        """Answer POST /score: how well the texts of each pair fit."""
        body = await self._body(request, ScoreRequest)
        asked = await self.prompts.ask(request, body)
        pairs = _pairs(body.text_1, body.text_2)
        scores, usage = await while_connected(request.receive, self._scores(asked, pairs, "text_2"))
        data = [Score(index=index, score=score) for index, score in enumerate(scores)]
        id = asked.id.replace("req", "score", 1)
        return json_answer(Scores(id=id, created=int(asked.wall), model=asked.name, data=data, usage=usage))

    async def rerank(self, request: Request) -> Response:
        """Answer POST /rerank: documents by how well they fit a query."""
        body = await self._body(request, RerankRequest)
        asked = await self.prompts.ask(request, body)
        pairs = [(body.query, document) for document in body.documents]
        scores, usage = await while_connected(request.receive, self._scores(asked, pairs, "documents"))
        best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n or None]
        results = [Ranked(index=index, relevance_score=scores[index]) for index in best]
        if body.return_documents:
            results = [
                Ranked(
                    index=one.index,
                    relevance_score=one.relevance_score,
                    document=RankedDocument(body.documents[one.index]),
                )
                for one in results
            ]
        id = asked.id.replace("req", "rerank", 1)
        return json_answer(Ranking(id=id, model=asked.name, usage=usage, results=results))

    async def _body(self, request: Request, type: type[T]) -> T:
        return parse_body(await read_body(request, self.max_body_bytes), type)

    async def _classified(self, asked: Asked, body: ClassifyRequest) -> tuple[list[Floats], PoolingUsage]:
        if asked.text.use.images is not None:
            return await self._images(asked, *image_urls(body))
        if body.input is None or body.messages is not None:
            raise bad_request("This model takes texts; give them in 'input', and no 'messages'.", "input")
        return await self._inputs(asked, body.input)

    async def _images(self, asked: Asked, urls: list[str], param: str) -> tuple[list[Floats], PoolingUsage]:
        rows, pixels = await self.prompts.images(asked, urls, param)
        told = await self.pooling.make(asked, rows, [VECTOR] * len(urls), pixels)
        return [vector_of(one) for one in told], usage_of(rows)

    async def _inputs(self, asked: Asked, given: Texts) -> tuple[list[Floats], PoolingUsage]:
        texts = await self.prompts.encode_all(asked, given, MOST_INPUTS, "input")
        told = await self.pooling.make(asked, texts, [VECTOR] * len(texts))
        return [vector_of(one) for one in told], usage_of(texts)

    async def _scores(
        self, asked: Asked, pairs: Sequence[tuple[str, str]], param: str
    ) -> tuple[list[float], PoolingUsage]:
        """How well the texts of each pair fit, as the model can tell it."""
        if not 1 <= len(pairs) <= MOST_INPUTS:
            raise bad_request(f"{param!r} has {len(pairs)} texts; there must be 1 to {MOST_INPUTS}.", param)
        check_reads(asked.name, asked.text.use)
        check_scores(asked.name, asked.text.use)
        if not asked.text.use.scores_pairs:
            return await self._angles(asked, pairs, param)
        texts, seconds = list[list[int]](), list[int]()
        for pair in pairs:
            tokens, second = asked.text.encode_pair(*pair, add_special_tokens=asked.body.add_special_tokens)
            texts.append(self.prompts.fitting(asked, tokens, param))
            cut = len(tokens) - len(texts[-1]) if asked.body.truncation_side == "left" else 0
            seconds.append(max(0, second - cut))
        if asked.text.use.labels:
            told = await self.pooling.make(asked, texts, [Sampling(pools=True, second=second) for second in seconds])
            return [float(likelihoods(vector_of(one), asked.text.use)[0]) for one in told], usage_of(texts)
        named = Sampling(logprobs=0, logprob_token_ids=[*asked.text.use.verdict])
        told = await self.pooling.make(asked, texts, [named] * len(texts))
        return [verdict(one) for one in told], usage_of(texts)

    async def _angles(
        self, asked: Asked, pairs: Sequence[tuple[str, str]], param: str
    ) -> tuple[list[float], PoolingUsage]:
        """The cosines between the vectors of each pair. The vector of a text that comes often is made once."""
        distinct = list(dict.fromkeys(text for pair in pairs for text in pair))
        texts = [await self.prompts.encode(asked, one, param) for one in distinct]
        told = await self.pooling.make(asked, texts, [VECTOR] * len(texts))
        vectors = {text: vector_of(one) for text, one in zip(distinct, told, strict=True)}
        return [cosine(vectors[one], vectors[other]) for one, other in pairs], usage_of(texts)


def usage_of(texts: Sequence[Sequence[int]]) -> PoolingUsage:
    """Count the tokens of all texts, as an answer's usage."""
    tokens = sum(map(len, texts))
    return PoolingUsage(tokens, tokens)


def image_urls(body: ClassifyRequest) -> tuple[list[str], str]:
    """The images that a body has, and in which parameter. Raises ApiError 400 where there is none, or there are
    both."""
    if (body.input is None) == (body.messages is None):
        raise bad_request("Give images either in 'input' or in 'messages'.", "input")
    if body.messages is not None:
        return [part.image_url.url for message in body.messages for part in message.content], "messages"
    given = [body.input] if isinstance(body.input, str) else body.input or []
    urls = [one for one in given if isinstance(one, str)]
    if not 1 <= len(given) <= MOST_INPUTS or len(urls) < len(given):
        raise bad_request(
            f"'input' must be 1 to {MOST_INPUTS} images as data URLs: this model takes no texts.", "input"
        )
    return urls, "input"


def _pairs(first: str | list[str], second: str | list[str]) -> list[tuple[str, str]]:
    """One text with each of several, or several with as many. Raises ApiError 400."""
    ones = [first] if isinstance(first, str) else first
    others = [second] if isinstance(second, str) else second
    if len(ones) == 1:
        ones = ones * len(others)
    if len(ones) != len(others):
        raise bad_request(
            f"'text_1' has {len(ones)} texts and 'text_2' {len(others)}; give one text_1, or as many of both.",
            "text_1",
        )
    return list(zip(ones, others, strict=True))


def pooling_operations(api: PoolingApi) -> list[Operation]:
    """Return the operations for vectors and scores, for the application and OpenAPI. Clients of several makers know one
    endpoint by several paths."""
    embeddings = _operation("/v1/embeddings", api.embeddings, "The vectors of texts", Embeddings, EmbeddingRequest)
    pool = _operation(
        "/pooling",
        api.pool,
        "The vectors of texts, or the scores of a model that gives scores",
        PooledList,
        PoolingRequest,
    )
    classify = _operation(
        "/classify",
        api.classify,
        "The likeliest label of each text, and how likely all are",
        Classes,
        ClassifyRequest,
    )
    score = _operation("/score", api.score, "How well texts fit each other", Scores, ScoreRequest)
    rerank = _operation(
        "/rerank", api.rerank, "Documents in the order in which they fit a query", Ranking, RerankRequest
    )
    again = [
        replace(classify, path="/v1/classify"),
        replace(score, path="/v1/score"),
        replace(rerank, path="/v1/rerank"),
        replace(rerank, path="/v2/rerank"),
    ]
    return [embeddings, pool, classify, score, rerank, *again]


def _operation(path: str, serve: Serve, summary: str, answer: type, body: type) -> Operation:
    """An endpoint that takes texts, and makes something of them as generation does."""
    return Operation("POST", path, serve, summary, {200: answer}, body=body, errors=GENERATION_ERRORS, protected=True)
