"""The operator's endpoints. Each asks the process that owns the matter, and passes its answer on."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.answers import DecisionList, EntryList, InstanceList, Listing, instances
from livescale.services.gateway.bodies import ModelRequest, RoleRequest, ScaleRequest
from livescale.services.gateway.errors import bad_request, from_bus
from livescale.services.gateway.models import RegisteredModels
from livescale.services.gateway.openapi import BODY_ERRORS, BUS_ERRORS, Operation
from livescale.services.gateway.parse import parse_body, read_body
from livescale.services.gateway.responses import json_answer
from livescale.shared.bus.contract import A, Bus, BusError, Call, Q
from livescale.shared.messages.registry import AskSnapshot, ModelEntry, Named
from livescale.shared.messages.scaling import AskDecisions, RoleSet, Scale, ScaleAccepted, SetRole
from livescale.shared.subjects import DECISIONS, REGISTER, REMOVE, ROLE, SCALE, SNAPSHOT

ASK_TIMEOUT_SECONDS = 2.0
# Longer, as the planner and the hosts check the order before they answer.
ORDER_TIMEOUT_SECONDS = 30.0
MOST_DECISIONS = 1_000


@dataclass(frozen=True)
class Admin:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError."""

    bus: Bus
    models: RegisteredModels
    max_body_bytes: int

    async def list_models(self, request: Request) -> Response:
        await self.models.refresh_for_client()
        return json_answer(Listing(data=self.models.entries))

    async def register(self, request: Request) -> Response:
        body = parse_body(await read_body(request, self.max_body_bytes), ModelRequest)
        if body.path is not None:
            await self.models.check_text(body.name, body.path, ORDER_TIMEOUT_SECONDS)
        entry = await self._ask(REGISTER, body.register(), ORDER_TIMEOUT_SECONDS)
        await self.models.refresh_for_client()
        return json_answer(entry, 201)

    async def remove(self, request: Request) -> Response:
        model = request.path_params["model"]
        entry = await self._ask(REMOVE, Named(model=model), ASK_TIMEOUT_SECONDS, model=model)
        await self.models.refresh_for_client()
        return json_answer(entry, 202)

    async def list_instances(self, request: Request) -> Response:
        return json_answer(Listing(data=instances(await self._ask(SNAPSHOT, AskSnapshot(), ASK_TIMEOUT_SECONDS))))

    async def scale(self, request: Request) -> Response:
        body = parse_body(await read_body(request, self.max_body_bytes), ScaleRequest)
        message = Scale(model=body.model, instances=body.instances)
        return json_answer(await self._ask(SCALE, message, ORDER_TIMEOUT_SECONDS, model=body.model), 202)

    async def set_role(self, request: Request) -> Response:
        body = parse_body(await read_body(request, self.max_body_bytes), RoleRequest)
        message = SetRole(worker=body.worker, role=body.role)
        return json_answer(await self._ask(ROLE, message, ORDER_TIMEOUT_SECONDS))

    async def decisions(self, request: Request) -> Response:
        limit = request.query_params.get("limit", "20")
        if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit) <= MOST_DECISIONS:
            raise bad_request(f"'limit' must be a number from 1 to {MOST_DECISIONS}.", param="limit")
        question = AskDecisions(model=request.query_params.get("model"), limit=int(limit))
        return json_answer(Listing(data=(await self._ask(DECISIONS, question, ASK_TIMEOUT_SECONDS)).decisions))

    async def _ask(self, call: Call[Q, A], message: Q, timeout: float, model: str | None = None) -> A:
        try:
            return await self.bus.call(call, message, timeout=timeout)
        except BusError as error:
            raise from_bus(error, model) from None


def admin_operations(admin: Admin) -> list[Operation]:
    """The operations of the operator's endpoints, for the application and OpenAPI."""
    return [*_questions(admin), *_orders(admin)]


def _questions(admin: Admin) -> list[Operation]:
    return [
        Operation(
            "GET",
            "/admin/v1/models",
            admin.list_models,
            "Models as registered, with their state",
            {200: EntryList},
            errors=BUS_ERRORS,
            protected=True,
        ),
        Operation(
            "GET",
            "/admin/v1/instances",
            admin.list_instances,
            "Instances with their workers and states",
            {200: InstanceList},
            errors=BUS_ERRORS,
            protected=True,
        ),
        Operation(
            "GET",
            "/admin/v1/decisions",
            admin.decisions,
            "The monitor's last decisions, with inputs, rule and reason; newest last",
            {200: DecisionList},
            query=(("model", "Only decisions on this model"), ("limit", "Most decisions to return; 20 by default")),
            errors=(400, *BUS_ERRORS),
            protected=True,
        ),
    ]


def _orders(admin: Admin) -> list[Operation]:
    return [
        Operation(
            "POST",
            "/admin/v1/models",
            admin.register,
            "Register a model, a new version of one, or other limits; answered once its checkpoint is checked",
            {201: ModelEntry},
            body=ModelRequest,
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
            "Set the number of instances of a model",
            {202: ScaleAccepted},
            body=ScaleRequest,
            errors=(*BODY_ERRORS, 404, 409, *BUS_ERRORS),
            protected=True,
        ),
        Operation(
            "POST",
            "/admin/v1/role",
            admin.set_role,
            "Have the instance that a worker leads prefer to prefill, to decode, or neither; only routing changes",
            {200: RoleSet},
            body=RoleRequest,
            errors=(*BODY_ERRORS, 404, 409, *BUS_ERRORS),
            protected=True,
        ),
    ]
