import json

from livescale.services.gateway.tool_calls.json_text import decoded_string
from livescale.services.gateway.tool_calls.python_calls import parsed


def test_half_of_a_surrogate_gets_into_no_answer() -> None:
    half = json.dumps("\ud800")
    assert decoded_string(half) is None
    assert parsed(f"f(a={half})") is None
    assert decoded_string(json.dumps("\U0001f600")) == "\U0001f600"
