"""A server with nothing behind it, starlette on uvicorn: it streams the same token again and again.

What it costs is what any gateway in Python costs at least.
"""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from livescale.load.bench.transfer.node_messages import end_with_parent

TOKEN = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"bench","choices":[{"index":0,'
    b'"text":" token","logprobs":null,"finish_reason":%b,"token_ids":[1234]}]}\n\n'
)
END_SECONDS = 5.0


class WantedTokens(msgspec.Struct):
    """The part of a request's body that decides the answer."""

    max_tokens: int


def application(gap_seconds: float) -> Starlette:
    """An app whose every answer streams one token after each gap."""

    async def complete(request: Request) -> StreamingResponse:
        wanted = msgspec.json.decode(await request.body(), type=WantedTokens)
        return StreamingResponse(tokens(wanted.max_tokens), media_type="text/event-stream")

    async def tokens(count: int) -> AsyncIterator[bytes]:
        for number in range(1, count + 1):
            await asyncio.sleep(gap_seconds)
            yield TOKEN % (b'"length"' if number == count else b"null")
        yield b"data: [DONE]\n\n"

    return Starlette(routes=[Route("/v1/completions", complete, methods=["POST"])])


def main(descriptor: int, gap_seconds: float) -> None:
    """Serve on this listening socket until the parent ends it, or ends."""
    end_with_parent()
    config = uvicorn.Config(application(gap_seconds), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


@contextmanager
def bare_stream(gap_seconds: float) -> Iterator[tuple[str, int]]:
    """A process of its own: its URL, and its pid."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program = f"from {__name__} import main; main({listener.fileno()}, {gap_seconds})"
        process = subprocess.Popen(
            [sys.executable, "-c", program], pass_fds=[listener.fileno()], stdout=subprocess.DEVNULL
        )
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", process.pid
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
