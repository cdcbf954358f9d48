"""The endpoints that list models with their states."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.answers import Listing, ModelCard, status
from livescale.services.gateway.models import RegisteredModels
from livescale.services.gateway.responses import json_answer
from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.registry import AskSnapshot, ModelEntry, Snapshot
from livescale.shared.subjects import SNAPSHOT

ASK_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True)
class Catalog:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError."""

    bus: Bus
    models: RegisteredModels

    async def cards(self, request: Request) -> Response:
        if not self.models.entries:
            await self.models.refresh_for_client()
        snapshot = await self.snapshot()
        entries = [entry for entry in self.models.entries if entry.state != "removing"]
        return json_answer(Listing(data=[_card(entry, snapshot) for entry in entries]))

    async def card(self, request: Request) -> Response:
        entry = await self.models.find(request.path_params["model"], failed=True)
        return json_answer(_card(entry, await self.snapshot()))

    async def snapshot(self) -> Snapshot | None:
        """The registry's snapshot of the system; None where the registry does not answer."""
        try:
            return await self.bus.call(SNAPSHOT, AskSnapshot(), timeout=ASK_TIMEOUT_SECONDS)
        except BusError:
            return None


def _card(entry: ModelEntry, snapshot: Snapshot | None) -> ModelCard:
    return ModelCard(
        id=entry.spec.name,
        created=entry.created,
        root=entry.spec.path,
        parent=entry.spec.base,
        max_model_len=entry.max_model_len,
        livescale=status(entry, snapshot),
    )
