"""All endpoints, each written once: what serves it, what it takes and what it gives.

Routes and documentation are made from this list.
"""

from typing import Any

from livescale.services.gateway import answers, bodies
from livescale.services.gateway.adapters import AdapterApi, adapter_operations
from livescale.services.gateway.admin import Admin
from livescale.services.gateway.catalog import Catalog
from livescale.services.gateway.completions import Completions
from livescale.services.gateway.generation_operations import generation_operations
from livescale.services.gateway.operation import BODY_ERRORS, BUS_ERRORS, MODEL_ERRORS, Operation
from livescale.services.gateway.pooling_api import PoolingApi
from livescale.services.gateway.pooling_operations import pooling_operations
from livescale.services.gateway.probes import Probes
from livescale.services.gateway.responses_api import ResponsesApi
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.scaling import RoleSet, ScaleAccepted


def operations(
    completions: Completions,
    responses: ResponsesApi,
    pooling: PoolingApi,
    catalog: Catalog,
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
        *_tokens(catalog),
        *_admin_questions(admin),
        *_admin_orders(admin),
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


def _tokens(catalog: Catalog) -> list[Operation]:
    errors = (*BODY_ERRORS, *MODEL_ERRORS)
    return [
        Operation(
            "POST",
            "/tokenize",
            catalog.tokenize,
            "The token ids of a prompt or of messages",
            {200: answers.Tokenized},
            body=bodies.TokenizeRequest,
            errors=errors,
            protected=True,
        ),
        Operation(
            "POST",
            "/detokenize",
            catalog.detokenize,
            "The text of token ids",
            {200: answers.Detokenized},
            body=bodies.DetokenizeRequest,
            errors=errors,
            protected=True,
        ),
        Operation(
            "GET",
            "/tokenizer_info",
            catalog.tokenizer_info,
            "What the checkpoint says of its tokenizer, with its chat template",
            {200: dict[str, Any]},
            query=(("model", "A registered model; may be left out where there is only one"),),
            errors=(400, *MODEL_ERRORS),
            protected=True,
        ),
    ]


def _admin_questions(admin: Admin) -> list[Operation]:
    return [
        Operation(
            "GET",
            "/admin/v1/models",
            admin.list_models,
            "Models as registered, with their state",
            {200: answers.EntryList},
            errors=BUS_ERRORS,
            protected=True,
        ),
        Operation(
            "GET",
            "/admin/v1/instances",
            admin.list_instances,
            "Instances with their workers and states",
            {200: answers.InstanceList},
            errors=BUS_ERRORS,
            protected=True,
        ),
        Operation(
            "GET",
            "/admin/v1/decisions",
            admin.decisions,
            "The monitor's last decisions, with inputs, rule and reason; newest last",
            {200: answers.DecisionList},
            query=(("model", "Of this model only"), ("limit", "At most so many; 20 by default")),
            errors=(400, *BUS_ERRORS),
            protected=True,
        ),
    ]


def _admin_orders(admin: Admin) -> list[Operation]:
    return [
        Operation(
            "POST",
            "/admin/v1/models",
            admin.register,
            "Register a model, a new version of one, or other limits; answered once its checkpoint was checked",
            {201: ModelEntry},
            body=bodies.ModelRequest,
            errors=(*BODY_ERRORS, 404, 409, 422, *BUS_ERRORS),
            protected=True,
        ),
        Operation(
            "DELETE",
            "/admin/v1/models/{model}",
            admin.remove,
            "Take a model out of service: no new requests, its instances drain, its memory is given back",
            {202: ModelEntry},
            errors=(404, *BUS_ERRORS),
            protected=True,
        ),
        Operation(
            "POST",
            "/admin/v1/scale",
            admin.scale,
            "Have this many instances of a model",
            {202: ScaleAccepted},
            body=bodies.ScaleRequest,
            errors=(*BODY_ERRORS, 404, 409, *BUS_ERRORS),
            protected=True,
        ),
        Operation(
            "POST",
            "/admin/v1/role",
            admin.set_role,
            "Have the instance that a worker leads prefer to prefill, to decode, or neither; only routing changes",
            {200: RoleSet},
            body=bodies.RoleRequest,
            errors=(*BODY_ERRORS, 404, 409, *BUS_ERRORS),
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
