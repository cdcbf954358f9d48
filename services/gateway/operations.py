"""All endpoints, each written once: what serves it, what it takes and what it gives.

Routes and documentation are made from this list.
"""

from livescale.services.gateway import answers
from livescale.services.gateway.adapters import AdapterApi, adapter_operations
from livescale.services.gateway.admin import Admin, admin_operations
from livescale.services.gateway.catalog import Catalog
from livescale.services.gateway.completions import Completions
from livescale.services.gateway.generation_operations import generation_operations
from livescale.services.gateway.openapi import Operation
from livescale.services.gateway.pooling_api import PoolingApi
from livescale.services.gateway.pooling_operations import pooling_operations
from livescale.services.gateway.probes import Probes
from livescale.services.gateway.responses_api import ResponsesApi
from livescale.services.gateway.tokenization import Tokenization, token_operations


def operations(
    completions: Completions,
    responses: ResponsesApi,
    pooling: PoolingApi,
    catalog: Catalog,
    tokenization: Tokenization,
    admin: Admin,
    probes: Probes,
    adapters: AdapterApi,
) -> list[Operation]:
    """The operations of all endpoints but those of the documentation itself."""
    return [
        *generation_operations(completions, responses),
        *pooling_operations(pooling),
        *_models(catalog),
        *adapter_operations(adapters),
        *token_operations(tokenization),
        *admin_operations(admin),
        *_probes(probes),
    ]


def _models(catalog: Catalog) -> list[Operation]:
    return [
        Operation(
            "GET",
            "/v1/models",
            catalog.cards,
            "The registered models",
            {200: answers.CardList},
            errors=(503,),
            protected=True,
        ),
        Operation(
            "GET",
            "/v1/models/{model}",
            catalog.card,
            "One model",
            {200: answers.ModelCard},
            errors=(404, 503),
            protected=True,
        ),
    ]


def _probes(probes: Probes) -> list[Operation]:
    health = {200: answers.Health, 503: answers.Health}
    return [
        Operation("GET", "/live", probes.live, "The process answers", {200: answers.Live}),
        Operation("GET", "/ready", probes.health, "Requests can be answered, or held until they can", health),
        Operation("GET", "/health", probes.health, "The same as /ready", health),
        Operation("GET", "/version", probes.version, "The version", {200: answers.Version}),
        Operation("GET", "/metrics", probes.metrics, "This gateway's metrics, for Prometheus", {200: "text/plain"}),
        Operation("GET", "/metrics/all", probes.all_metrics, "All processes' metrics in one", {200: "text/plain"}),
    ]
