"""A whole system at its most talkative: what clients ask and are answered is seen nowhere but by them."""

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import nats
import pytest
from nats.aio.msg import Msg

from tests.system.conftest import System, start, stop

MARK = "xyzzy-plugh"


async def converse(system: System, events: list[bytes]) -> tuple[list[int], str]:
    """A prompt's tokens, and what the metrics say after it was served whole, refused, and over a worker's death."""

    async def keep(message: Msg) -> None:
        events.append(message.data)

    client = await nats.connect(system.nats_url, allow_reconnect=False)
    await client.subscribe("livescale.default.evt.>", cb=keep)
    await client.subscribe("livescale.default.hb.>", cb=keep)
    ask = {"model": "m", "prompt": f"{MARK} {MARK} {MARK}", "max_tokens": 60, "ignore_eos": True}
    async with aiohttp.ClientSession(system.url) as http:
        async with http.post("/tokenize", json={"model": "m", "prompt": MARK}) as answer:
            tokens: list[int] = (await answer.json())["tokens"]
        for body in (ask, ask | {"max_tokens": MARK}, ask | {"prompt": MARK * 9000}):
            async with http.post("/v1/completions", json=body) as answer:
                await answer.read()
        # Long, and the victim is known before it begins, so that it dies in the midst of it.
        victim = next(one["pid"] for one in system.status()["workers"] if one["state"] == "serving")
        async with http.post("/v1/completions", json=ask | {"max_tokens": 500, "stream": True}) as answer:
            await answer.content.readline()
            os.kill(victim, signal.SIGKILL)
            assert (await answer.content.read()).endswith(b"[DONE]\n\n")
        async with http.get("/metrics/all") as answer:
            metrics = await answer.text()
    await client.close()
    return tokens, metrics


@pytest.mark.system
async def test_nothing_of_a_conversation_is_logged_counted_or_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVESCALE_LOG_FORMAT", "json")
    system, events = await asyncio.to_thread(start, tmp_path, "--log-level", "debug"), list[bytes]()
    try:
        tokens, metrics = await converse(system, events)
    finally:
        assert await asyncio.to_thread(stop, system) == 0
    log = (tmp_path / "up.log").read_text()
    assert "request_lost" in log
    assert len(events) > 10
    told = b"\n".join(events).decode(errors="replace")
    for place in (log, metrics, told):
        assert MARK not in place
        for separator in (",", ", "):
            assert separator.join(map(str, tokens)) not in place
    password = system.nats_url.partition("@")[0].rpartition(":")[2]
    assert password not in log + metrics + told
    assert "permissions violation" not in log.lower()
