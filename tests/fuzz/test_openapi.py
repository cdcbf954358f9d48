"""The gateway against its own document: what it says of itself generates requests, and judges the answers."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fuzz.effort import FACTOR
from tests.gateway.conftest import open_site
from tests.made import tiny

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
PER_OPERATION = 20
SECONDS = 10.0  # for any answer
FEW = settings(
    max_examples=PER_OPERATION * FACTOR,
    derandomize=FACTOR == 1,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A gateway in a thread of its own, for schemathesis waits for its answers."""
    listening = threading.Event()
    told: dict[str, Any] = {}

    async def serve() -> None:
        async with open_site(tiny("qwen2")) as site:
            stop = asyncio.Event()
            told.update(url=site.url, stop=stop.set, loop=asyncio.get_running_loop())
            listening.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert listening.wait(30)
    yield told["url"]
    told["loop"].call_soon_threadsafe(told["stop"])
    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def schema(url: str) -> Any:
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


def test_the_document_keeps_the_rules_of_openapi(schema: Any) -> None:
    schema.validate()


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_the_gateway_keeps_its_word_whatever_it_is_asked(schema: Any, mode: Any) -> None:
    operations = [operation.ok() for operation in schema.get_all_operations()]
    assert len(operations) > 15
    for operation in operations:
        # Nothing but bodies can be got wrong: every text is a model's name, and a GET without parameters is right.
        if mode is schemathesis.GenerationMode.POSITIVE or operation.body:
            examine(operation, mode)


def examine(operation: Any, mode: Any) -> None:
    @FEW
    @given(operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        case.call_and_validate(checks=CHECKS, timeout=SECONDS)

    ask()
