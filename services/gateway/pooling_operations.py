"""The endpoints for vectors and scores. Clients of several makers know one endpoint by several paths."""

from dataclasses import replace

from livescale.services.gateway import pooling_answers as answers
from livescale.services.gateway import pooling_bodies as bodies
from livescale.services.gateway.operation import GENERATION_ERRORS, Operation
from livescale.services.gateway.pooling_api import PoolingApi


def pooling_operations(api: PoolingApi) -> list[Operation]:
    """Return the operations for vectors and scores, one for each path."""
    embeddings = Operation(
        "POST",
        "/v1/embeddings",
        api.embeddings,
        "The vectors of texts",
        {200: answers.Embeddings},
        body=bodies.EmbeddingRequest,
        errors=GENERATION_ERRORS,
        protected=True,
    )
    pool = Operation(
        "POST",
        "/pooling",
        api.pool,
        "The vectors of texts, or the scores of a model that gives scores",
        {200: answers.PooledList},
        body=bodies.PoolingRequest,
        errors=GENERATION_ERRORS,
        protected=True,
    )
    classify = Operation(
        "POST",
        "/classify",
        api.classify,
        "The likeliest label of each text, and how likely all are",
        {200: answers.Classes},
        body=bodies.ClassifyRequest,
        errors=GENERATION_ERRORS,
        protected=True,
    )
    score = Operation(
        "POST",
        "/score",
        api.score,
        "How well texts fit each other",
        {200: answers.Scores},
        body=bodies.ScoreRequest,
        errors=GENERATION_ERRORS,
        protected=True,
    )
    rerank = Operation(
        "POST",
        "/rerank",
        api.rerank,
        "Documents in the order in which they fit a query",
        {200: answers.Ranking},
        body=bodies.RerankRequest,
        errors=GENERATION_ERRORS,
        protected=True,
    )
    again = [
        replace(classify, path="/v1/classify"),
        replace(score, path="/v1/score"),
        replace(rerank, path="/v1/rerank"),
        replace(rerank, path="/v2/rerank"),
    ]
    return [embeddings, pool, classify, score, rerank, *again]
