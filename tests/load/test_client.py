"""The open-loop client against a server that answers as it is told."""

import re
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from livescale.load.client import Client, EventStream, open_session, send_open_loop
from livescale.load.records import Ask, RequestRecord, find_fault, write_records
from livescale.load.tally import Tally
from livescale.load.target import TargetError, learn_target, make_asks
from livescale.load.trace import Arrival
from livescale.shared.runtime.clock import SystemClock
from tests.load.scripted_server import ScriptedServer


def asks(count: int, at: float = 0.0) -> list[Ask]:
    return [Ask(index, at, [1, 2, 3], 4) for index in range(count)]


async def send(server: ScriptedServer, requests: list[Ask], timeout: float = 10.0) -> list[RequestRecord]:
    records: list[RequestRecord] = []
    async with server.serving() as url, open_session(url, "", timeout) as session:
        await send_open_loop(Client(session, "tiny", SystemClock(), Tally()), requests, records)
    return sorted(records, key=lambda record: record.index)


async def test_a_good_stream_is_recorded_token_by_token() -> None:
    server = ScriptedServer()
    (record,) = await send(server, asks(1))
    assert record.token_ids == [100, 101, 102, 103]
    assert len(record.token_at) == 4
    assert record.due <= record.sent <= record.token_at[0]
    assert record.token_at == sorted(record.token_at)
    assert record.ended >= record.token_at[-1]
    assert (record.status, record.finish_reason, find_fault(record)) == (200, "length", None)
    assert server.bodies[0]["prompt"] == [1, 2, 3]
    assert server.bodies[0]["ignore_eos"] is True
    assert server.bodies[0]["max_tokens"] == 4


@pytest.mark.parametrize(
    ("act", "fault"),
    [
        ("refuse", "HTTP 429: the queue is full"),
        ("fail", "error in the stream: worker lost"),
        ("break", "connection failed"),
        ("short", "3 of 4 tokens came"),
        ("unfinished", r"the stream ended without \[DONE\]"),
    ],
)
async def test_a_stream_that_is_not_complete_says_why(act: str, fault: str) -> None:
    good, bad = await send(ScriptedServer(["good", act]), [Ask(0, 0.0, [1], 4), Ask(1, 0.05, [1], 4)])
    assert find_fault(good) is None
    assert re.match(fault, find_fault(bad) or "")


async def test_a_server_that_hangs_ends_the_record_at_its_time_limit() -> None:
    (record,) = await send(ScriptedServer(token_seconds=30), asks(1), timeout=0.1)
    assert find_fault(record) == "no end of the stream in time"


async def test_arrivals_are_kept_while_the_server_is_slow() -> None:
    server = ScriptedServer(token_seconds=0.05)
    records = await send(server, [Ask(index, index * 0.01, [1], 4) for index in range(10)])
    dues = [record.due - records[0].due for record in records]
    assert dues == [pytest.approx(index * 0.01) for index in range(10)]
    assert all(record.sent - record.due < 0.1 for record in records)
    assert records[-1].sent < records[0].ended  # the last was sent before the first had ended


async def test_the_target_says_what_must_be_said_beside_its_figures() -> None:
    server = ScriptedServer(card={"livescale": {"state": "ready", "warning": "made up"}})
    async with server.serving() as url, open_session(url, "", 10) as session:
        assert (await learn_target(session, None)).warning == "made up"


async def test_the_target_is_learnt_from_the_server() -> None:
    async with ScriptedServer().serving() as url, open_session(url, "", 10) as session:
        target = await learn_target(session, None)
        with pytest.raises(TargetError, match="no model 'big'; it has: tiny"):
            await learn_target(session, "big")
    assert (target.model, target.context) == ("tiny", 64)
    assert len(target.vocabulary) > 20
    made = make_asks((Arrival(0.0, 10, 5), Arrival(1.0, 1000, 500)), target, seed=1)
    assert [(len(ask.prompt), ask.max_tokens) for ask in made] == [(10, 5), (32, 32)]
    assert set(made[1].prompt) <= set(target.vocabulary)
    assert made == make_asks((Arrival(0.0, 10, 5), Arrival(1.0, 1000, 500)), target, seed=1)


async def test_an_absent_server_is_named() -> None:
    async with open_session("http://127.0.0.1:9", "", 10) as session:
        with pytest.raises(TargetError, match="no answer from /v1/models"):
            await learn_target(session, None)


@pytest.mark.parametrize(
    ("status", "content_type", "body", "said"),
    [
        (404, "text/html", b"<!DOCTYPE HTML><html><h1>Error response</h1></html>", "answered 404: text/html, as no"),
        (200, "text/html", b"<!DOCTYPE HTML><html></html>", "did not answer as an OpenAI server does"),
        (401, "application/json", b'{"error": {"message": "no such key"}}', "answered 401: no such key"),
        (502, "text/plain", b"upstream is away", "answered 502: upstream is away"),
    ],
)
async def test_what_is_no_server_for_models_is_told_without_its_pages(
    status: int, content_type: str, body: bytes, said: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, content_type=content_type)

    app = web.Application()
    app.router.add_get("/v1/models", answer)
    async with TestServer(app) as server, open_session(str(server.make_url("/")), "", 10) as session:
        with pytest.raises(TargetError, match=said) as raised:
            await learn_target(session, None)
    assert "<" not in str(raised.value)


def test_events_are_cut_out_of_bytes_however_they_are_split() -> None:
    data = b'data: {"a": 1}\r\n\r\n: comment\ndata:{"b": 2}\n\ndata: [DONE]\n\n'
    expected = [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]
    for size in range(1, len(data)):
        events = EventStream()
        found = [event for start in range(0, len(data), size) for event in events.feed(data[start : start + size])]
        assert found == expected


async def test_records_are_written_one_json_object_a_line(tmp_path: Path) -> None:
    records = await send(ScriptedServer(), asks(2))
    path = tmp_path / "records.jsonl"
    write_records(path, records)
    assert [msgspec.json.decode(line, type=RequestRecord) for line in path.read_bytes().splitlines()] == records
