from livescale.load.chaos.client import PatientClient
from livescale.load.client import open_session, send_open_loop
from livescale.load.records import Ask, RequestRecord
from livescale.load.stats import Tally
from livescale.shared.runtime.clock import SystemClock
from tests.load.scripted_server import ScriptedServer


async def test_a_refused_request_is_sent_again_only_where_the_server_allows_it() -> None:
    server = ScriptedServer(["busy", "busy", "good", "refuse"])
    records: list[RequestRecord] = []
    async with server.serving() as url, open_session(url, "", 10.0) as session:
        client = PatientClient({"gateway-0": session}, "tiny", SystemClock(), Tally())
        await send_open_loop(client, [Ask(0, 0.0, [1], 4)], records)
        await send_open_loop(client, [Ask(1, 0.0, [1], 4)], records)
    assert (records[0].error, len(records[0].token_ids)) == (None, 4)
    assert records[1].error == "HTTP 429: the queue is full"
    assert client.refusals == {0: 2}


async def test_a_stream_that_broke_is_kept_apart_and_its_request_made_anew_at_another_gateway() -> None:
    first, second = ScriptedServer(["break"]), ScriptedServer()
    records: list[RequestRecord] = []
    async with (
        first.serving() as one,
        second.serving() as two,
        open_session(one, "", 10.0) as to_first,
        open_session(two, "", 10.0) as to_second,
    ):
        client = PatientClient({"gateway-0": to_first, "gateway-1": to_second}, "tiny", SystemClock(), Tally())
        await send_open_loop(client, [Ask(0, 0.0, [1], 4)], records)
    assert (len(first.bodies), len(second.bodies)) == (1, 1)
    assert (records[0].error, len(records[0].token_ids)) == (None, 4)
    [cut] = client.cuts
    assert cut.gateway == "gateway-0"
    assert cut.record.token_ids == [100]
    assert "connection failed" in (cut.record.error or "")
    assert records[0].due == cut.record.due


async def test_a_gateway_that_does_not_listen_is_passed_over() -> None:
    server, tally = ScriptedServer(), Tally()
    records: list[RequestRecord] = []
    async with (
        server.serving() as url,
        open_session("http://127.0.0.1:1", "", 10.0) as nowhere,
        open_session(url, "", 10.0) as session,
    ):
        client = PatientClient({"gateway-0": nowhere, "gateway-1": session}, "tiny", SystemClock(), tally)
        await send_open_loop(client, [Ask(0, 0.0, [1], 4)], records)
    assert records[0].error is None
    assert (tally.sent, tally.ended, tally.failed) == (1, 1, 0)
    assert client.cuts == []
