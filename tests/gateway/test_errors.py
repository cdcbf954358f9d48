"""Whatever goes wrong, clients are told in OpenAI's words."""

import re
from collections.abc import Mapping

import openai
import pytest

from livescale.services.gateway.errors import ApiError, bad_request, renamed
from livescale.services.gateway.messages_request import NAMES as OF_MESSAGES
from livescale.services.gateway.responses_request import NAMES as OF_RESPONSES
from livescale.shared.bus.contract import Refusal
from tests.gateway.conftest import ServedGateway


async def test_errors_have_openais_shape(served: ServedGateway) -> None:
    cases: list[tuple[str, str, bytes, int, str | None, str | None]] = [
        ("POST", "/v1/completions", b"{", 400, None, "invalid_json"),
        ("POST", "/v1/completions", b'{"model": 5, "prompt": "a"}', 400, "model", "invalid_value"),
        ("POST", "/v1/completions", b'{"model": "other", "prompt": "a"}', 404, "model", "model_not_found"),
        ("POST", "/v1/chat/completions", b'{"model": "tiny"}', 400, "messages", "invalid_value"),
        ("POST", "/tokenize", b'{"model": "tiny"}', 400, "prompt", None),
        ("POST", "/detokenize", b'{"model": "tiny", "tokens": [5000]}', 400, "tokens", None),
        ("GET", "/v1/nothing", b"", 404, None, "not_found"),
        ("GET", "/v1/models/other/", b"", 404, "model", "model_not_found"),
        ("GET", "/v1/completions", b"", 405, None, "method_not_allowed"),
        ("DELETE", "/v1/models", b"", 405, None, "method_not_allowed"),
    ]
    for method, path, body, status, param, code in cases:
        async with served.http.request(method, served.url + path, data=body) as answer:
            error = (await answer.json())["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert (answer.status, error["param"], error["code"]) == (status, param, code), path
            assert answer.headers["x-request-id"]


async def test_errors_map_to_the_clients_exceptions(served: ServedGateway) -> None:
    async def ask(**changes: object) -> object:
        options = {"model": "tiny", "prompt": "abc", **changes}
        return await served.client.completions.create(**options)  # type: ignore[call-overload]

    with pytest.raises(openai.NotFoundError) as missing:
        await ask(model="other")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as wrong:
        await ask(temperature=3)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        await ask(prompt="word " * 300)
    assert long.value.code == "context_length_exceeded"
    for code, exception, name in (
        (429, openai.RateLimitError, "queue_full"),
        (503, openai.InternalServerError, "overloaded"),
    ):
        served.cluster.refusal = Refusal(code, "not now", retry_after_ms=1500 if code == 429 else None)
        with pytest.raises(exception) as refused:
            await ask()
        assert refused.value.code == name
        assert refused.value.status_code == code
        if code == 429:
            assert refused.value.response.headers["retry-after-ms"] == "1500"
            assert refused.value.response.headers["retry-after"] == "2"


@pytest.mark.parametrize(
    ("names", "param", "name"),
    [
        (OF_RESPONSES, "messages", "input"),
        (OF_RESPONSES, "tools[3].function.parameters.type", "tools[3].parameters.type"),
        (OF_RESPONSES, "tool_choice.function.name", "tool_choice.name"),
        (OF_RESPONSES, "messages[0].role", "messages[0].role"),  # of no such name
        (OF_MESSAGES, "tools[3].function.parameters.type", "tools[3].input_schema.type"),
        (OF_MESSAGES, "response_format", "output_config.format"),
        (OF_MESSAGES, "messages", "messages"),
    ],
)
def test_a_parameter_has_the_name_that_its_client_knows(names: Mapping[str, str], param: str, name: str) -> None:
    with pytest.raises(ApiError, match=re.escape(f"{name!r} is wrong")) as refused, renamed(names):
        raise bad_request(f"{param!r} is wrong; leave it out.", param)
    assert refused.value.detail.param == name


def test_an_error_about_no_parameter_stays() -> None:
    with pytest.raises(ApiError, match="Nothing of messages") as refused, renamed(OF_RESPONSES):
        raise bad_request("Nothing of messages is wrong.")
    assert refused.value.detail.param is None
