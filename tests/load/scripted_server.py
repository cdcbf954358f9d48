"""A server that speaks the OpenAI API's streaming form and answers as it is told."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer


class ScriptedServer:
    """`script` names what to do with the n-th completion; requests beyond the script are answered well."""

    def __init__(
        self, script: list[str] | None = None, token_seconds: float = 0.001, card: dict[str, Any] | None = None
    ) -> None:
        self.card = card or {}
        self.script = script or []
        self.token_seconds = token_seconds
        self.bodies: list[dict[str, Any]] = []

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "object": "model", "max_model_len": 64, **self.card}]})

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"tokens": [7 + ord(c) % 50 for c in body["prompt"]], "count": len(body["prompt"])})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        act = self.script[len(self.bodies)] if len(self.bodies) < len(self.script) else "good"
        self.bodies.append(body)
        if act == "refuse":
            error = {"message": "the queue is full", "type": "rate_limit", "param": None, "code": "queue_full"}
            return web.json_response({"error": error}, status=429)
        if act == "busy":
            error = {"message": "no worker yet", "type": "server_error", "param": None, "code": "overloaded"}
            return web.json_response({"error": error}, status=503, headers={"retry-after": "0"})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        count = body["max_tokens"] - (act == "short")
        for index in range(count):
            await asyncio.sleep(self.token_seconds)  # as an engine takes time
            if act == "break" and index == 1:
                request.transport.close()  # type: ignore[union-attr]
                return response
            if act == "fail" and index == 1:
                await response.write(b'data: {"error": {"message": "worker lost", "code": null}}\n\n')
                return response
            reason = "length" if index == count - 1 else None
            choice = {"index": 0, "text": "x", "token_ids": [100 + index], "finish_reason": reason}
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        if act != "unfinished":
            await response.write(b"data: [DONE]\n\n")
        return response

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/v1/completions", self.completions)
        server = TestServer(app)
        await server.start_server()
        try:
            yield str(server.make_url("/"))
        finally:
            await server.close()
