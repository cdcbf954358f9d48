from typing import Any

import msgspec
import pytest

from livescale.services.gateway.allowed import allowed_values
from livescale.services.gateway.bodies import ChatRequest
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.parse import parse_body


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("messages[0].role", ["assistant", "developer", "system", "tool", "user"]),
        ("tool_choice", ["auto", "none", "required"]),
        ("tools[0].type", ["function"]),
        ("response_format.type", ["text", "json_object", "json_schema"]),
        ("temperature", []),
        ("messages[0].nothing", []),
        ("", []),
    ],
)
def test_values_are_found_where_they_are_a_few(path: str, allowed: list[str]) -> None:
    assert allowed_values(ChatRequest, path) == allowed


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tool_choice": "maybe"}, "it is one of 'auto', 'none', 'required' (parameter 'tool_choice')."),
        ({"response_format": {"type": "xml"}}, "it is one of 'text', 'json_object', 'json_schema'"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "one of 'assistant', 'developer', 'system', 'tool'"),
    ],
)
def test_an_error_about_one_of_a_few_tells_them(wrong: dict[str, Any], message: str) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], **wrong}
    with pytest.raises(ApiError) as refused:
        parse_body(msgspec.json.encode(body), ChatRequest)
    assert message in refused.value.detail.message
