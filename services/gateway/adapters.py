"""The endpoints that load and unload adapters, as vLLM has them, and what a request's name stands for."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from livescale.services.gateway.errors import ApiError, bad_request, from_bus, model_not_found, overloaded
from livescale.services.gateway.models import RegisteredModels
from livescale.services.gateway.openapi import BODY_ERRORS, BUS_ERRORS, Operation
from livescale.services.gateway.parse import parse_body, read_body
from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.model_spec import ModelSpec, Path
from livescale.shared.messages.registry import ModelEntry, Named, Register
from livescale.shared.subjects import REGISTER, REMOVE

ORDER_SECONDS = 30.0
LOOK_SECONDS = 0.05

AdapterName = Annotated[str, Meta(min_length=1, max_length=128)]


class LoadAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/load_lora_adapter: serve the adapter in a directory beside its base model."""

    lora_name: Annotated[AdapterName, Meta(description="What requests call it, as their model")]
    lora_path: Annotated[Path, Meta(description="A directory in peft's format on all hosts")]
    base_model_name: Annotated[
        str | None, Meta(description="The model that it is for; may be left out where there is only one")
    ] = None


class UnloadAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/unload_lora_adapter: serve an adapter no longer. `lora_int_id` is accepted and ignored."""

    lora_name: AdapterName
    lora_int_id: int | None = None


@dataclass(frozen=True)
class AdapterApi:
    """Endpoints of starlette: each takes a request and returns its response. They raise ApiError."""

    bus: Bus
    models: RegisteredModels
    max_body_bytes: int

    async def load(self, request: Request) -> Response:
        body = parse_body(await read_body(request, self.max_body_bytes), LoadAdapter)
        await self._wait_for_name(body.lora_name)
        base = await self.models.find_or_only(body.base_model_name or "", "base_model_name")
        spec = ModelSpec(name=body.lora_name, path=body.lora_path, base=base.spec.name)
        await self._register(spec)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload(self, request: Request) -> Response:
        body = parse_body(await read_body(request, self.max_body_bytes), UnloadAdapter)
        entry = await self.models.find(body.lora_name, failed=True)
        if entry.spec.base is None:
            raise model_not_found(body.lora_name)
        try:
            await self.bus.call(REMOVE, Named(model=body.lora_name), timeout=ORDER_SECONDS)
        except BusError as error:
            raise from_bus(error, body.lora_name) from None
        await self.models.refresh_for_client()
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def _wait_for_name(self, name: str) -> None:
        """Return once nothing has this name. An adapter that was unloaded has it until hosts and workers have let go of
        it. Raises ApiError."""
        try:
            async with asyncio.timeout(ORDER_SECONDS):
                while True:
                    await self.models.refresh_for_client()
                    has_it = [entry for entry in self.models.entries if entry.spec.name == name]
                    if not has_it:
                        return
                    if has_it[0].state != "removing":
                        raise bad_request(f"The name {name!r} is taken; unload that adapter first.", "lora_name")
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise overloaded(f"{name!r} is still being unloaded; try again in a moment.") from None

    async def _register(self, spec: ModelSpec) -> ModelEntry:
        """Register an adapter, and return once a host has it. Raises ApiError."""
        try:
            async with asyncio.timeout(ORDER_SECONDS):
                entry = await self.bus.call(REGISTER, Register(spec=spec), timeout=ORDER_SECONDS)
                while entry.state == "reading":
                    await asyncio.sleep(LOOK_SECONDS)
                    await self.models.refresh_for_client()
                    entry = await self.models.find(spec.name)
        except BusError as error:
            raise from_bus(error) from None
        except TimeoutError:
            with suppress(BusError):  # so that its name is free for another try
                await self.bus.call(REMOVE, Named(model=spec.name), timeout=ORDER_SECONDS)
            raise ApiError(504, f"The adapter {spec.name!r} was not read in time.", type="timeout_error") from None
        return entry


def adapter_operations(adapters: AdapterApi) -> list[Operation]:
    """The operations of the adapters' endpoints, for the application and OpenAPI."""
    return [
        Operation(
            "POST",
            "/v1/load_lora_adapter",
            adapters.load,
            "Serve an adapter under a name of its own; answered once a host has it in memory",
            {200: "text/plain"},
            body=LoadAdapter,
            errors=(*BODY_ERRORS, 404, 409, 422, *BUS_ERRORS),
            protected=True,
        ),
        Operation(
            "POST",
            "/v1/unload_lora_adapter",
            adapters.unload,
            "Serve an adapter no longer; requests that use it end first",
            {200: "text/plain"},
            body=UnloadAdapter,
            errors=(*BODY_ERRORS, 404, *BUS_ERRORS),
            protected=True,
        ),
    ]
