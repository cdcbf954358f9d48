"""The documentation is whole: every route, every status, every reference."""

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from livescale.services.gateway.bodies import ChatRequest, CompletionRequest
from livescale.services.gateway.parameters import IGNORED
from tests.gateway.conftest import ServedGateway

ROUTES = {
    "/v1/load_lora_adapter": {"post"},
    "/v1/unload_lora_adapter": {"post"},
    "/v1/models": {"get"},
    "/v1/models/{model}": {"get"},
    "/v1/chat/completions": {"post"},
    "/v1/completions": {"post"},
    "/v1/chat/completions/render": {"post"},
    "/v1/completions/render": {"post"},
    "/v1/messages": {"post"},
    "/v1/messages/count_tokens": {"post"},
    "/v1/embeddings": {"post"},
    "/pooling": {"post"},
    "/score": {"post"},
    "/v1/score": {"post"},
    "/classify": {"post"},
    "/v1/classify": {"post"},
    "/rerank": {"post"},
    "/v1/rerank": {"post"},
    "/v2/rerank": {"post"},
    "/v1/responses": {"post"},
    "/v1/responses/{response_id}": {"get", "delete"},
    "/v1/responses/{response_id}/cancel": {"post"},
    "/v1/responses/{response_id}/input_items": {"get"},
    "/v1/responses/input_tokens": {"post"},
    "/tokenize": {"post"},
    "/detokenize": {"post"},
    "/tokenizer_info": {"get"},
    "/live": {"get"},
    "/ready": {"get"},
    "/health": {"get"},
    "/metrics": {"get"},
    "/metrics/all": {"get"},
    "/version": {"get"},
    "/docs": {"get"},
    "/openapi.json": {"get"},
    "/admin/v1/models": {"get", "post"},
    "/admin/v1/models/{model}": {"delete"},
    "/admin/v1/instances": {"get"},
    "/admin/v1/scale": {"post"},
    "/admin/v1/role": {"post"},
    "/admin/v1/decisions": {"get"},
}


async def document(served: ServedGateway) -> dict[str, Any]:
    found: dict[str, Any] = (await served.get("/openapi.json"))[1]
    return found


def references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for one in node:
            yield from references(one)


async def test_every_route_is_described_and_every_description_is_a_route(served: ServedGateway) -> None:
    described = await document(served)
    assert described["openapi"] == "3.1.0"
    assert {path: set(methods) for path, methods in described["paths"].items()} == ROUTES
    for path, methods in ROUTES.items():
        for method in methods:
            async with served.http.request(
                method, served.url + path.format(model="tiny", response_id="resp-1")
            ) as answer:
                assert str(answer.status) in described["paths"][path][method]["responses"], path


async def test_operations_are_structurally_sound(served: ServedGateway) -> None:
    described = await document(served)
    schemas = described["components"]["schemas"]
    assert {reference.rsplit("/", 1)[1] for reference in references(described)} <= set(schemas)
    assert all(reference.startswith("#/components/schemas/") for reference in references(described))
    operations = [one for methods in described["paths"].values() for one in methods.values()]
    assert len({one["operationId"] for one in operations}) == len(operations)
    for operation in operations:
        assert operation["summary"]
        for status, response in operation["responses"].items():
            assert re.fullmatch(r"[2-5]\d\d", status)
            assert response["description"]
            assert response["content"]


@pytest.mark.parametrize("type", [CompletionRequest, ChatRequest])
async def test_bodies_are_described_with_bounds_and_meaning(served: ServedGateway, type: type) -> None:
    schema = (await document(served))["components"]["schemas"][type.__name__]
    assert set(schema["properties"]) == {*type.__struct_fields__, *IGNORED[type]}  # type: ignore[attr-defined]
    temperature = schema["properties"]["temperature"]
    assert {"type": "number", "minimum": 0, "maximum": 2} in temperature["anyOf"]
    assert temperature["description"].startswith("0 is greedy")


async def test_generating_endpoints_name_every_way_they_can_end(served: ServedGateway) -> None:
    responses = (await document(served))["paths"]["/v1/completions"]["post"]["responses"]
    assert set(responses) == {"200", "400", "404", "408", "413", "415", "429", "500", "503", "504"}
    assert set(responses["200"]["content"]) == {"application/json", "text/event-stream"}


@pytest.mark.parametrize(
    ("path", "body", "right"),
    [
        ("/v1/completions", {"prompt": "a", "stream_options": {}}, False),
        ("/v1/completions", {"prompt": "a", "stream_options": {}, "stream": False}, False),
        ("/v1/completions", {"prompt": "a", "stream_options": {}, "stream": True}, True),
        ("/v1/completions", {"prompt": "a", "temprature": 1}, False),
        ("/v1/completions", {"prompt": "a", "user": "me", "top_logprobs": 1}, False),
        ("/v1/completions", {"prompt": "a", "user": "me"}, True),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 1}, False),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 1, "logprobs": True},
            True,
        ),
        ("/tokenize", {"model": "tiny", "prompt": "a", "other": 1}, False),
    ],
)
async def test_the_document_admits_what_the_gateway_accepts(
    served: ServedGateway, path: str, body: dict[str, Any], right: bool
) -> None:
    described = await document(served)
    schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema_rs.validator_for({**schema, "components": described["components"]})
    assert validator.is_valid(body) == right
    async with served.http.post(served.url + path, json={"model": "tiny", **body}) as answer:
        assert answer.status == (200 if right else 400)
