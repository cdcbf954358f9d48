import json

import pytest

from livescale.services.gateway.tool_calls.json_text import decoded_string
from livescale.services.gateway.tool_calls.python_calls import parsed
from livescale.services.gateway.tool_calls.tagged import as_json

NUMBER, ARRAY = frozenset({"number"}), frozenset({"array"})


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999"])
def test_what_json_has_no_number_for_is_a_text(value: str) -> None:
    assert as_json(value, NUMBER) == json.dumps(value)
    assert as_json("1.5", NUMBER) == "1.5"


def test_half_of_a_surrogate_gets_into_no_answer() -> None:
    half = json.dumps("\ud800")
    assert decoded_string(half) is None
    assert as_json(f"[{half}]", ARRAY) == json.dumps(f"[{half}]")
    assert parsed(f"f(a={half})") is None
    assert decoded_string(json.dumps("\U0001f600")) == "\U0001f600"
