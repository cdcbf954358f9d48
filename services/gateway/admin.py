"""The operator's endpoints. Each asks the process that owns the matter, and passes its answer on."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.answers import Listing, instances
from livescale.services.gateway.bodies import ModelRequest, RoleRequest, ScaleRequest
from livescale.services.gateway.errors import bad_request, from_bus
from livescale.services.gateway.models import RegisteredModels
from livescale.services.gateway.parse import parse_body, read_body
from livescale.services.gateway.responses import json_answer
from livescale.shared.bus.contract import A, Bus, BusError, Call, Q
from livescale.shared.messages.registry import AskSnapshot, Named
from livescale.shared.messages.scaling import AskDecisions, Scale, SetRole
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
