"""Prompts and outputs stay between the client and the engine: logs, metrics and spans never hold them."""

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from livescale.services.gateway import submission
from livescale.shared.process import telemetry
from livescale.shared.process.otlp import Otlp
from tests.gateway.conftest import ServedGateway, eventually, serve_gateway

MARK = "xyzzy-plugh"
ASK = {"model": "tiny", "prompt": f"{MARK} {MARK}", "max_tokens": 24}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": MARK}], "max_tokens": 24}


@pytest.fixture(params=["text", "json"])
def logs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    handlers, level, written = logging.root.handlers[:], logging.root.level, io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    telemetry.configure_logging("gateway", "gateway-0", "debug", request.param)
    yield written
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(telemetry, "Otlp", partial(Otlp, processor=SimpleSpanProcessor(exporter)))
    return exporter


async def post(served: ServedGateway, path: str, body: Any) -> str:
    data = body if isinstance(body, str) else json.dumps(body)
    async with served.http.post(served.url + path, data=data) as answer:
        return await answer.text()


async def serve_well(served: ServedGateway) -> None:
    assert MARK in await post(served, "/v1/completions", ASK)
    for stream in (False, True):
        assert "cmpl-" in await post(served, "/v1/completions", ASK | {"stream": stream, "return_token_ids": True})
        assert "chatcmpl" in await post(served, "/v1/chat/completions", CHAT | {"stream": stream})
    tokens = json.loads(await post(served, "/tokenize", {"model": "tiny", "prompt": MARK}))["tokens"]
    assert MARK in await post(served, "/detokenize", {"model": "tiny", "tokens": tokens})


async def refuse(served: ServedGateway) -> None:
    await post(served, "/v1/completions", '{"prompt": "' + MARK)
    await post(served, "/v1/completions", ASK | {"max_tokens": MARK})
    await post(served, "/v1/completions", ASK | {"suffix": MARK, MARK: 1})
    await post(served, "/v1/completions", ASK | {"prompt": MARK * 500})
    await post(served, "/v1/chat/completions", CHAT | {"messages": [{"role": MARK, "content": MARK}]})
    await post(served, "/admin/v1/scale", {"model": MARK, "instances": MARK})
    await post(served, "/v1/completions", "[" * 5000 + MARK)


async def fail(served: ServedGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model, the worker, the client and the gateway itself, each in the middle."""
    served.cluster.finish = "error"
    assert "error" in await post(served, "/v1/completions", ASK | {"stream": True})
    served.cluster.finish = None
    served.cluster.lost_at = {len(served.cluster.submitted) + 1: 3}
    assert MARK in await post(served, "/v1/completions", ASK)
    released = served.cluster.hang_before(2)
    leaving = asyncio.create_task(post(served, "/v1/completions", ASK | {"stream": True}))
    await eventually(lambda: served.cluster.hanging)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    released.cancel()
    served.cluster.before = lambda request, position: None

    def broken(*args: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(submission, "make_submit", broken)
    assert "internal_error" in await post(served, "/v1/completions", ASK)


async def test_neither_prompts_nor_outputs_are_seen_from_outside(
    checkpoint: Path,
    logs: io.StringIO,
    spans: InMemorySpanExporter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve_gateway(checkpoint) as served:
        ids = served.says(f"{MARK} ")
        await serve_well(served)
        await refuse(served)
        await fail(served, monkeypatch)
        exposition = served.gateway._world.telemetry.exposition()
    seen = logs.getvalue()
    assert "a bug" in seen  # the log is on, and tells of bugs with their place
    assert "make_submit" in seen
    assert "request_lost" in seen
    finished = [span.to_json() for span in spans.get_finished_spans()]
    assert len(finished) >= 6
    tokens = ", ".join(str(id) for id in ids)
    for place in (seen, exposition, *finished):
        assert MARK not in place
        assert tokens not in place
