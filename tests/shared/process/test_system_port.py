"""The system port over real sockets, and what it does with what is no request."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.bus.contract import ServiceInfo
from livescale.shared.process.system_port import (
    MOST_HEAD_BYTES,
    MOST_VISITS,
    CannotListen,
    SystemPort,
    announced,
    listen,
    split_address,
    write_address,
)

INFO = ServiceInfo("router", "router-1", "under test")


class Served:
    """A port whose process is not ready for the `reason`, if any."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.port = SystemPort(INFO, lambda: "up 1\n", self.why_not_ready)
        self.address = ""

    async def why_not_ready(self) -> str | None:
        return self.reason

    @asynccontextmanager
    async def on(self, address: str = "127.0.0.1:0") -> AsyncIterator["Served"]:
        bound = listen(address)
        self.address = announced(bound, "box")
        async with self.port.serve(bound):
            yield self

    async def ask(self, path: str, method: str = "GET") -> tuple[int, str, str]:
        """Status, media type and body."""
        url = f"http://{self.address}{path}"
        async with aiohttp.ClientSession() as session, session.request(method, url) as answer:
            return answer.status, answer.content_type, await answer.text()

    async def send(self, data: bytes) -> bytes:
        """What comes back for these bytes, until the port closes the connection."""
        reader, writer = await asyncio.open_connection(*split_address(self.address))
        try:
            async with asyncio.timeout(60):
                writer.write(data)
                writer.write_eof()
                return await reader.read()
        except OSError:  # it was closed before all was sent
            return b""
        finally:
            writer.close()


def condition(body: str) -> dict[str, Any]:
    assert body.count("\n") == 1
    found: dict[str, Any] = json.loads(body)
    return found


async def test_live_ready_and_metrics_are_answered() -> None:
    async with Served().on() as served:
        status, kind, body = await served.ask("/live")
        assert (status, kind) == (200, "application/json")
        assert condition(body) == {"status": "ok", "service": "router", "id": "router-1"}
        assert (await served.ask("/ready"))[0] == 200
        assert await served.ask("/metrics?x=1") == (200, "text/plain", "up 1\n")


async def test_who_is_not_ready_says_why_in_one_line() -> None:
    async with Served().on() as served:
        served.reason = "the bus is disconnected"
        status, _, body = await served.ask("/ready")
        assert status == 503
        assert condition(body) == {
            **{"status": "unavailable", "service": "router", "id": "router-1"},
            "reason": "the bus is disconnected",
        }
        assert (await served.ask("/live"))[0] == 200


async def test_other_paths_and_methods_are_refused() -> None:
    async with Served().on() as served:
        status, _, body = await served.ask("/")
        assert (status, condition(body)["reason"]) == (404, "this port serves /live, /ready and /metrics")
        assert (await served.ask("/metrics", "POST"))[0] == 405
        assert await served.ask("/metrics", "HEAD") == (200, "text/plain", "")


async def test_a_head_that_is_too_long_or_never_ends_gets_no_answer() -> None:
    async with Served().on() as served:
        assert await served.send(b"GET /live HTTP/1.1\r\nx: " + b"y" * MOST_HEAD_BYTES + b"\r\n\r\n") == b""
        assert await served.send(b"GET /live HTTP/1.1\r\n") == b""
        assert (await served.ask("/live"))[0] == 200


async def test_connections_beyond_the_most_are_closed_and_the_port_closes_those_that_are_left() -> None:
    async with Served().on() as served:
        idle = [await asyncio.open_connection(*split_address(served.address)) for _ in range(MOST_VISITS)]
        assert await served.send(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n") == b""
    async with asyncio.timeout(60):
        assert await asyncio.gather(*(reader.read() for reader, _ in idle)) == [b""] * MOST_VISITS
    for _, writer in idle:
        writer.close()


@given(st.binary(max_size=300))
def test_whatever_comes_is_answered_or_closed_and_the_port_stays(data: bytes) -> None:
    async def main() -> None:
        async with Served().on() as served:
            answer = await served.send(data + b"\r\n\r\n")
            assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
            assert (await served.send(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")).startswith(b"HTTP/1.1 200 ")

    asyncio.run(main())


async def test_a_loop_that_hangs_does_not_say_that_it_lives() -> None:
    async with Served().on() as served:
        heard: list[bytes] = []

        def ask() -> None:
            with socket.create_connection(split_address(served.address), timeout=0.3) as one:
                one.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
                try:
                    heard.append(one.recv(4096))
                except TimeoutError:
                    heard.append(b"silence")

        asking = threading.Thread(target=ask)
        asking.start()
        asking.join()  # on the loop's own thread: it hangs for as long
        assert heard == [b"silence"]


async def test_on_every_address_the_port_goes_by_the_machines_name() -> None:
    async with Served().on("0.0.0.0:0") as served:
        assert served.address.startswith("box:")


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
async def test_an_address_of_ipv6_is_in_brackets() -> None:
    async with Served().on("[::1]:0") as served:
        assert served.address.startswith("[::1]:")
        assert (await served.ask("/live"))[0] == 200


async def test_an_address_in_use_is_refused_with_what_to_do() -> None:
    async with Served().on() as served:
        with pytest.raises(CannotListen, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use.*; choose"):
            listen(served.address)
    with pytest.raises(CannotListen, match="ports end at 65535"):
        listen("127.0.0.1:99999")
    with pytest.raises(CannotListen, match=r"nowhere\.invalid:1: Name or service not known|nowhere"):
        listen("nowhere.invalid:1")


@pytest.mark.parametrize(("address", "near"), [("0.0.0.0:0", "127.0.0.1"), ("127.0.0.1:0", "127.0.0.1")])
def test_a_probe_on_this_machine_finds_the_port_in_a_file(address: str, near: str, tmp_path: Path) -> None:
    with listen(address) as bound:
        write_address(tmp_path / "system", bound)
        assert (tmp_path / "system").read_text() == f"{near}:{bound.getsockname()[1]}\n"
        with pytest.raises(CannotListen, match=r"system-file: .*: Is a directory; name a file"):
            write_address(tmp_path, bound)
