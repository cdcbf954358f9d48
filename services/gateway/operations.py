"""All endpoints, each written once: what serves it, what it takes and what it gives.

Routes and documentation are made from this list.
"""

from livescale.services.gateway import answers, bodies, shapes
from livescale.services.gateway import responses_objects as objects
from livescale.services.gateway.admin import Admin
from livescale.services.gateway.catalog import Catalog
from livescale.services.gateway.completions import Completions
from livescale.services.gateway.operation import BODY_ERRORS, BUS_ERRORS, GENERATION_ERRORS, MODEL_ERRORS, Operation
from livescale.services.gateway.pooling_api import PoolingApi
from livescale.services.gateway.pooling_operations import pooling_operations
from livescale.services.gateway.probes import Probes
from livescale.services.gateway.responses_api import ResponsesApi
from livescale.services.gateway.responses_request import ResponsesRequest
from livescale.shared.messages.disaggregation import RoleSet
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.scaling import ScaleAccepted


def operations(
    completions: Completions,
    responses: ResponsesApi,
    pooling: PoolingApi,
    catalog: Catalog,
    admin: Admin,
    probes: Probes,
) -> list[Operation]:
    """The operations of all endpoints but those of the documentation itself."""
    return [
        *_generation(completions),
        *_responses(responses),
        *pooling_operations(pooling),
        *_models(catalog),
        *_tokens(catalog),
        *_admin_questions(admin),
        *_admin_orders(admin),
        *_probes(probes),
    ]


def _generation(completions: Completions) -> list[Operation]:
    return [
        Operation(
            "POST",
            "/v1/chat/completions",
            completions.chat,
            "Continue a conversation, by the checkpoint's chat template",
            {200: shapes.ChatCompletion},
            body=bodies.ChatRequest,
            stream=shapes.ChatCompletionChunk,
            errors=GENERATION_ERRORS,
            protected=True,
        ),
        Operation(
            "POST",
            "/v1/completions",
            completions.completion,
            "Continue one or more texts",
            {200: shapes.Completion},
            body=bodies.CompletionRequest,
            stream=shapes.Completion,
            errors=GENERATION_ERRORS,
            protected=True,
        ),
    ]


def _responses(api: ResponsesApi) -> list[Operation]:
    """Responses, which are made like chats and kept for a while."""
    return [
        Operation(
            "POST",
            "/v1/responses",
            api.create,
            "Answer an input, after an earlier response if one is named, and keep the response for a while",
            {200: objects.ResponseObject},
            body=ResponsesRequest,
            stream=objects.ResponseEvent,
            errors=GENERATION_ERRORS,
            protected=True,
        ),
        Operation(
            "GET",
            "/v1/responses/{response_id}",
            api.retrieve,
            "A response that was kept",
            {200: objects.ResponseObject},
            errors=(404, *BUS_ERRORS),
            protected=True,
        ),
        Operation(
            "DELETE",
            "/v1/responses/{response_id}",
            api.delete,
            "Keep a response no longer",
            {200: objects.DeletedResponse},
            errors=(404, *BUS_ERRORS),
            protected=True,
        ),
        Operation(
            "POST",
            "/v1/responses/{response_id}/cancel",
            api.cancel,
            "Cancel a response that is made in the background",
            {200: objects.ResponseObject},
            errors=(400, 404, 500, *BUS_ERRORS),
            protected=True,
        ),
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
