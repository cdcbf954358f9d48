"""The open-loop client against a server that answers as it is told."""

import re
from pathlib import Path

import msgspec
import pytest

from livescale.load.client import EventCutter, LoadClient, open_session, send_open_loop
from livescale.load.records import Ask, RequestRecord, find_fault, write_records
from livescale.load.stats import Tally
from livescale.shared.runtime.clock import SystemClock
from tests.load.scripted_server import ScriptedServer


def asks(count: int, at: float = 0.0) -> list[Ask]:
    return [Ask(index, at, [1, 2, 3], 4) for index in range(count)]


async def send(server: ScriptedServer, requests: list[Ask], timeout: float = 60.0) -> list[RequestRecord]:
    records: list[RequestRecord] = []
    async with server.serving() as url, open_session(url, "", timeout) as session:
        await send_open_loop(LoadClient(session, "tiny", SystemClock(), Tally()), requests, records)
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
    server = ScriptedServer(["good", act])
    [(good,), (bad,)] = [await send(server, asks(1)) for _ in range(2)]
    assert find_fault(good) is None
    assert re.match(fault, find_fault(bad) or "")


async def test_a_server_that_hangs_ends_the_record_at_its_time_limit() -> None:
    (record,) = await send(ScriptedServer(token_seconds=30), asks(1), timeout=0.1)
    assert find_fault(record) == "no end of the stream in time"


async def test_arrivals_are_kept_while_the_server_is_slow() -> None:
    server = ScriptedServer(token_seconds=0.5)
    records = await send(server, [Ask(index, index * 0.01, [1], 4) for index in range(10)])
    dues = [record.due - records[0].due for record in records]
    assert dues == [pytest.approx(index * 0.01) for index in range(10)]
    assert all(record.sent - record.due < 1.0 for record in records)
    assert records[-1].sent < records[0].ended  # the last was sent before the first had ended


def test_events_are_cut_out_of_bytes_however_they_are_split() -> None:
    data = b'data: {"a": 1}\r\n\r\n: comment\ndata:{"b": 2}\n\ndata: [DONE]\n\n'
    expected = [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]
    for size in range(1, len(data)):
        events = EventCutter()
        found = [event for start in range(0, len(data), size) for event in events.feed(data[start : start + size])]
        assert found == expected


async def test_records_are_written_one_json_object_a_line(tmp_path: Path) -> None:
    records = await send(ScriptedServer(), asks(2))
    path = tmp_path / "records.jsonl"
    write_records(path, records)
    assert [msgspec.json.decode(line, type=RequestRecord) for line in path.read_bytes().splitlines()] == records
