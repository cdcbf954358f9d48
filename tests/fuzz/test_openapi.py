"""The gateway against its own document: what it says of itself generates requests, and judges the answers."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

from tests.checkpoints import tiny_checkpoint
from tests.fuzz.effort import FACTOR
from tests.gateway.conftest import serve_gateway

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
PER_OPERATION = 10
GUARDED = ("/v1/", "/v2/", "/admin/", "/tokenize", "/detokenize", "/pooling", "/classify", "/score", "/rerank")
SECONDS = 60.0  # for any answer
KEYS = """
- {name: alice, key: "alice's", requests-per-minute: 20, tokens-per-minute: 400, max-concurrent: 2}
- {name: bob, key: "bob's"}
- {name: ops, key: "operator's", admin: true}
"""
TRIED = ("wrong", "alice's", "bob's", "operator's")
FEW = settings(
    max_examples=PER_OPERATION * FACTOR,
    derandomize=FACTOR == 1,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
FEWER = settings(FEW, max_examples=4 * FACTOR)


@contextmanager
def gateway(**settings: object) -> Iterator[str]:
    """The url of one in a thread of its own, for schemathesis waits for its answers."""
    checkpoint = tiny_checkpoint("qwen2")  # before anyone waits: to import torch takes a busy machine minutes
    listening = threading.Event()
    told: dict[str, Any] = {}

    async def serve() -> None:
        async with serve_gateway(checkpoint, **settings) as served:
            stop = asyncio.Event()
            told.update(url=served.url, stop=stop.set, loop=asyncio.get_running_loop())
            listening.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert listening.wait(60)
    yield told["url"]
    told["loop"].call_soon_threadsafe(told["stop"])
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def schema() -> Iterator[Any]:
    with gateway() as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A gateway with keys: alice's is good for a few requests and tokens, bob's for all, the operator's for more."""
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    file.write_text(KEYS)
    file.chmod(0o600)
    with gateway(api_keys=str(file)) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


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


def test_with_keys_as_well(locked: Any) -> None:
    """Each request is sent with every key: to generate it takes longer than to answer it."""
    seen: dict[str, Counter[tuple[bool, int]]] = {key: Counter() for key in TRIED}
    for operation in (one.ok() for one in locked.get_all_operations()):
        guarded, admin = "security" in operation.definition.raw, operation.path.startswith("/admin/")
        assert guarded == operation.path.startswith(GUARDED)
        for key, statuses in examine(operation, schemathesis.GenerationMode.POSITIVE, FEWER, TRIED).items():
            if key == "wrong":
                assert (statuses == {401}) == guarded
            elif admin and key != "operator's":
                assert statuses <= {403, 429}
            seen[key].update((guarded, status) for status in statuses)
    assert (True, 429) in seen["alice's"]
    assert (True, 200) in seen["bob's"]
    assert (True, 200) in seen["operator's"]
    for found in seen.values():
        assert not [status for guarded, status in found if not guarded and status in (401, 403, 429)]


def examine(operation: Any, mode: Any, how: settings = FEW, keys: Sequence[str] = ("",)) -> dict[str, set[int]]:
    """Ask one operation in many ways, each with every key, and return the statuses that were seen with it."""
    statuses: dict[str, set[int]] = {key: set() for key in keys}

    @how
    @given(operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        for key, seen in statuses.items():
            headers = {"authorization": f"Bearer {key}"} if key else None
            seen.add(case.call_and_validate(checks=CHECKS, timeout=SECONDS, headers=headers).status_code)

    ask()
    return statuses
