import os
import time
from typing import Any

from livescale.load.bench.requests.parsed import processor_seconds, request_body
from livescale.load.bench.requests.schemas import make_schema


def test_both_kinds_of_requests_ask_for_the_same_schema() -> None:
    schema = make_schema(3)
    plain: Any = request_body(schema, tools=False)
    parsed: Any = request_body(schema, tools=True)
    assert plain["response_format"]["json_schema"]["schema"] == schema
    assert parsed["tools"][0]["function"]["parameters"] == schema
    assert {name for name in plain if plain[name] != parsed.get(name)} == {"response_format"}


def test_the_processor_time_of_a_process_grows() -> None:
    before = processor_seconds(os.getpid())
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert processor_seconds(os.getpid()) > before
