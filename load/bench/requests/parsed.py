"""What it costs a gateway that calls of tools are read from answers, beside the same answers as plain text."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import msgspec

from livescale.load.bench.record import Record, measured
from livescale.load.bench.requests.schemas import Schema, make_schema
from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.system import MODEL, ONE_INSTANCE, Launcher
from livescale.load.client import open_session

BENCH = "requests"
MOST_TOKENS = 256
AT_ONCE = 16
ANSWERS = 96  # of each kind in a round
ROUNDS = 5
ANSWER_SECONDS = 120.0
MOST = 1.5
MESSAGES = [{"role": "user", "content": "A thing."}]
DATA, DONE = b"data: ", b"[DONE]"


async def measure_parsing(launcher: Launcher, checkpoint: Path) -> Sequence[Record]:
    """Stream answers by schemas in turns as arguments of a tool that has to be called, and as JSON."""
    costs: dict[bool, list[float]] = {False: [], True: []}
    async with launcher.start(checkpoint, ONE_INSTANCE, workers=1) as system:
        gateway = system.pid("gateway-0")
        async with open_session(system.url, "", ANSWER_SECONDS) as session:
            launcher.progress(f"{2 * ROUNDS * ANSWERS} answers, half of them calls of tools")
            await _stream_all(session, tools=True)
            for tools in [False, True] * ROUNDS:
                before = processor_seconds(gateway)
                tokens = await _stream_all(session, tools=tools)
                costs[tools].append((processor_seconds(gateway) - before) / tokens)
    plain, parsed = (1e6 * median(costs[tools]) for tools in (False, True))
    return [measured(BENCH, "gateway's CPU a token with tools parsed, to plain", parsed, "us", plain, at_most=MOST)]


def processor_seconds(pid: int) -> float:
    """What a process has used of processors so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _stream_all(session: aiohttp.ClientSession, *, tools: bool) -> int:
    """Stream some answers, and return how many tokens they have. Raises BenchFailed."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def stream_one(number: int) -> int:
        async with (
            turns,
            session.post("v1/chat/completions", json=request_body(make_schema(number), tools=tools)) as answer,
        ):
            if answer.status != 200:
                raise BenchFailed(f"schema {number}: {await answer.text()}")
            last = b""
            async for line in answer.content:
                if line.startswith(DATA) and not line.startswith(DATA + DONE):
                    last = line.removeprefix(DATA)
        usage: dict[str, Any] = msgspec.json.decode(last)["usage"]
        return int(usage["completion_tokens"])

    return sum(await asyncio.gather(*map(stream_one, range(ANSWERS))))


def request_body(schema: Schema, *, tools: bool) -> dict[str, object]:
    """A request whose answer follows the schema: as the arguments of a call, or as it is."""
    body: dict[str, object] = {
        "model": MODEL,
        "messages": MESSAGES,
        "max_tokens": MOST_TOKENS,
        "temperature": 1.0,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        tool = {"type": "function", "function": {"name": "thing", "parameters": schema}}
        return {**body, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    return {**body, "response_format": {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}}
