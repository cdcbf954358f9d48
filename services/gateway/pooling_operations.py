"""The endpoints for vectors and scores. Clients of several makers know one endpoint by several paths."""

from dataclasses import replace

from livescale.services.gateway import pooling_shapes as shapes
from livescale.services.gateway.openapi import GENERATION_ERRORS, Operation, Serve
from livescale.services.gateway.pooling_api import PoolingApi


def pooling_operations(api: PoolingApi) -> list[Operation]:
    """Return the operations for vectors and scores, one for each path."""
    embeddings = _operation(
        "/v1/embeddings", api.embeddings, "The vectors of texts", shapes.Embeddings, shapes.EmbeddingRequest
    )
    pool = _operation(
        "/pooling",
        api.pool,
        "The vectors of texts, or the scores of a model that gives scores",
        shapes.PooledList,
        shapes.PoolingRequest,
    )
    classify = _operation(
        "/classify",
        api.classify,
        "The likeliest label of each text, and how likely all are",
        shapes.Classes,
        shapes.ClassifyRequest,
    )
    score = _operation("/score", api.score, "How well texts fit each other", shapes.Scores, shapes.ScoreRequest)
    rerank = _operation(
        "/rerank", api.rerank, "Documents in the order in which they fit a query", shapes.Ranking, shapes.RerankRequest
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
