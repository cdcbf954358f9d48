"""`livescale load` from the outside."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from livescale.load.command import load
from livescale.load.records import RequestRecord
from tests.load.scripted_server import ScriptedServer

SHORT = ["--duration", "1", "--rate", "5", "--burst-rate", "20", "--prompt-tokens", "8", "--output-tokens", "4"]


async def invoke(server: ScriptedServer, *arguments: str) -> Result:
    """The command in a thread of its own, the server on the test's loop."""
    async with server.serving() as url:
        return await asyncio.to_thread(CliRunner().invoke, load, [url, *arguments])


async def test_a_good_load_prints_its_table_and_exits_0(tmp_path: Path) -> None:
    server = ScriptedServer()
    result = await invoke(server, *SHORT, "--output", str(tmp_path / "records.jsonl"))
    assert result.exit_code == 0, result.output
    assert "TTFT p50" in result.output
    lines = (tmp_path / "records.jsonl").read_bytes().splitlines()
    records = [msgspec.json.decode(line, type=RequestRecord) for line in lines]
    assert [record.index for record in records] == list(range(len(server.bodies)))
    assert len(records) > 3


async def test_the_summary_can_be_json() -> None:
    result = await invoke(ScriptedServer(), *SHORT, "--json")
    summary = json.loads(result.stdout)
    assert summary["failed"] == 0
    assert summary["ttft_p50"] > 0


async def test_any_stream_that_fails_makes_it_exit_1() -> None:
    result = await invoke(ScriptedServer(["good", "refuse", "fail"]), *SHORT)
    assert result.exit_code == 1
    assert "1 x HTTP 429: the queue is full" in result.stderr
    assert "1 x error in the stream: worker lost" in result.stderr


async def test_a_trace_is_replayed(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("arrival_s,prompt,output\n0.1,10,2\n0.2,20,4\n5,30,6\n")
    server = ScriptedServer()
    result = await invoke(server, "--trace", str(tmp_path / "trace.csv"), "--window", "0:1", "--rate-scale", "2")
    assert result.exit_code == 0, result.output
    assert [body["max_tokens"] for body in server.bodies] == [2, 4, 6]  # two stamps twice, three lengths in all


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "is not a URL"),
        (["http://127.0.0.1:9"], "no answer from /v1/models"),
        (["http://127.0.0.1:9", "--window", "0:10"], "--window says how to replay a trace"),
        (["http://127.0.0.1:9", "--rate-scale", "2"], "--rate-scale says how to replay a trace"),
        (["http://127.0.0.1:9", "--trace", "absent.csv"], "absent.csv: not a readable trace"),
        (["http://127.0.0.1:9", "--rate", "0"], "--rate"),
        (["http://127.0.0.1:9", "--misspelt", "1"], "No such option"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(load, arguments)
    assert result.exit_code in (1, 2)
    assert message in result.stderr


def test_a_window_without_requests_and_a_bad_window_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt,output\n0.1,10,2\n")
    for window, message in (("50:60", "no request between 50 s and 60 s"), ("5", "is not a window")):
        result = CliRunner().invoke(load, ["http://127.0.0.1:9", "--trace", str(path), "--window", window])
        assert result.exit_code == 1
        assert message in result.stderr


async def test_a_model_that_is_not_served_is_refused() -> None:
    result = await invoke(ScriptedServer(), *SHORT, "--model", "big")
    assert result.exit_code == 1
    assert "no model 'big'; it has: tiny" in result.stderr
