"""The bus on a real server, with a client that writes the protocol by hand: bytes and headers of every kind."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from livescale.shared.bus.codec import (
    CONTENT_TYPE,
    DEADLINE,
    EPOCH,
    ERROR,
    ERROR_CODE,
    REQUEST_ID,
    RETRY,
    TIMEOUT,
    TRACEPARENT,
)
from livescale.shared.bus.contract import Call, Context, Endpoint, ServiceInfo
from livescale.shared.bus.nats import NatsBus
from livescale.shared.messages.membership import Beat
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import Named, Register
from livescale.shared.subjects import HEARTBEAT
from tests.fuzz.effort import examples
from tests.fuzz.hostile import hostile
from tests.nats_server import NatsServer

pytestmark = pytest.mark.system

SAY: Call[Register, Named] = Call("svc.echo.say", Register, Named, queue=True)
WAIT: Call[Named, Named] = Call("svc.echo.wait", Named, Named)
INFO = ServiceInfo("echo", "echo-0", "says what it hears")
SUBJECT, BEATS = b"livescale.test.svc.echo.say", b"livescale.test.hb.router.router-0"
LARGE = (1 << 20) - 5_000
NAMES = [CONTENT_TYPE, DEADLINE, TIMEOUT, EPOCH, REQUEST_ID, TRACEPARENT, ERROR, ERROR_CODE, RETRY, "Status"]
VALUES: list[bytes] = [
    *(b"", b"0", b"-1", b"1" * 400, b"9" * 5_000, b"1e9", b"nan", b"\xff\xfe", b"\xed\xa0\x80", b"\0", b"503"),
    *(b"application/json", b"application/msgpack", b"application/json; x", "語".encode(), b"a: b\r b", b"x" * 60_000),
    *(b"-" + b"9" * 300, b"253402300800000", b"-62135596800001", b"1_0", "\uff11\uff12".encode()),
]
# Whole blocks that are no headers, or only just.
BLOCKS = [
    *(
        b"",
        b"NATS/1.0",
        b"NATS/1.0\r\n",
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0 \xff\xff\xff\r\n\r\n",
        b"NATS/1.0 503\r\n\r\n",
    ),
    *(
        b"NATS/1.0 100 \xff\r\n\r\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\n: x\r\n\r\n",
        b"HTTP/1.1\r\na: b\r\n\r\n",
    ),
    *(
        b"NATS/1.0\r\n\xff\xff: \xff\r\n\r\n",
        b"\xff" * 200,
        b"NATS/1.0\r\na: b",
        b"NATS/1.0 1\r\na",
        b"NATS/1.0" + b"\r\n" * 50,
    ),
]
REPLIES = [b"", b"_INBOX.nobody.1", b"\xff\xfe", SUBJECT, b"$SYS.x", b"a..b", b"*", b">", b"x" * 1_000]

blocks = (
    st.sampled_from(BLOCKS)
    | st.binary(max_size=100)
    | st.lists(
        st.tuples(st.sampled_from(NAMES) | st.just("X-Other"), st.sampled_from(VALUES) | st.binary(max_size=40)),
        max_size=8,
    ).map(
        lambda pairs: (
            b"NATS/1.0\r\n" + b"".join(name.encode() + b": " + value + b"\r\n" for name, value in pairs) + b"\r\n"
        )
    )
)
bodies = (
    hostile(Register, json=False) | hostile(Register, json=True) | hostile(Beat, json=True) | st.binary(max_size=50)
)
words = st.tuples(st.sampled_from([SUBJECT, BEATS]), st.sampled_from(REPLIES), blocks, bodies)


class Stranger:
    """A client that writes arbitrary bytes to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def say(self, subject: bytes, reply: bytes, block: bytes, body: bytes) -> None:
        sizes = b"%d %d" % (len(block), len(block) + len(body))
        self._writer.write(b"HPUB %s %s %s\r\n%s%s\r\n" % (subject, reply, sizes, block, body))

    def listen(self, subject: bytes) -> None:
        self._writer.write(b"SUB %s 1\r\n" % subject)

    async def answer(self) -> bytes:
        """Return the headers of the next message."""
        async with asyncio.timeout(60):
            while not (line := await self._reader.readline()).startswith(b"HMSG"):
                assert line
            return await self._reader.readexactly(int(line.split()[-2]))

    async def heard(self) -> None:
        """Wait until the server has read everything, or has closed the connection."""
        with suppress(ConnectionError):
            self._writer.write(b"PING\r\n")
            await self._writer.drain()
            async with asyncio.timeout(60):
                while (line := await self._reader.readline()) and not line.startswith(b"PONG"):
                    pass


@asynccontextmanager
async def stranger(port: int) -> AsyncIterator[Stranger]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            b"CONNECT " + json.dumps({"verbose": False, "headers": True, "pedantic": False}).encode() + b"\r\n"
        )
        yield Stranger(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[int, NatsBus, NatsBus]]:
    """A port, a bus that serves and listens there, and another that asks."""

    async def say(message: Register, context: Context) -> Named:
        return Named(model=message.spec.name)

    with tempfile.TemporaryDirectory() as directory:
        async with NatsServer.start(Path(directory) / "nats") as server:
            serving, asking = [
                await NatsBus.connect(server.url, "test", name, timeout=60) for name in ("echo-0", "asker-0")
            ]
            await serving.serve(INFO, [Endpoint(SAY, say)])
            try:
                yield int(server.url.rsplit(":", 1)[1]), serving, asking
            finally:
                await asyncio.gather(serving.close(), asking.close())


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@examples(2)
@given(st.lists(words, min_size=20, max_size=40))
def test_whatever_bytes_come_the_bus_reads_on(said: list[tuple[bytes, bytes, bytes, bytes]]) -> None:
    async def main() -> None:
        async with echoing() as (port, serving, asking):
            beats = await serving.subscribe(HEARTBEAT)
            for subject, reply, block, body in said:  # each on his own, for the server shows some of them out
                async with stranger(port) as someone:
                    someone.say(subject, reply, block, body)
                    await someone.heard()
            await asyncio.gather(works(asking), works(serving))
            asking.publish(HEARTBEAT, Beat(service="router", id="router-0", epoch=7), service="router", id="router-0")
            async with asyncio.timeout(60):
                while (await anext(aiter(beats))).message.epoch != 7:
                    pass
            assert (serving.counts["reconnects"], asking.counts["reconnects"]) == (0, 0)

    with capture_logs() as logs:
        asyncio.run(main())
    assert {"handler_failed", "bus_echo_lost"}.isdisjoint(line["event"] for line in logs)


async def works(bus: NatsBus) -> None:
    spec = ModelSpec(name="m", path="/m")
    assert (await bus.call(SAY, Register(spec=spec), timeout=60)).model == "m"


@pytest.mark.parametrize("block", BLOCKS)
async def test_a_block_of_headers_that_is_none_cuts_nobody_off(block: bytes) -> None:
    async with echoing() as (port, serving, asking), stranger(port) as someone:
        someone.say(SUBJECT, b"x", block, b"")
        await someone.heard()
        await works(asking)
        assert serving.connected


@pytest.mark.parametrize(
    ("name", "value"),
    [(DEADLINE, b"9" * 400), (TIMEOUT, b"-" + b"9" * 300), (EPOCH, b"1e9"), (EPOCH, b"\xff" * 50_000)],
)
async def test_a_header_that_is_no_number_is_refused_by_its_name(name: str, value: bytes) -> None:
    async with echoing() as (port, _, _), stranger(port) as someone:
        someone.listen(b"_INBOX.stranger")
        someone.say(SUBJECT, b"_INBOX.stranger", b"NATS/1.0\r\n%s: %s\r\n\r\n" % (name.encode(), value), b"{}")
        refusal = (await someone.answer()).decode()
        assert f"{ERROR_CODE}: 400\r\n" in refusal
        assert f"{ERROR}: header {name} is not a whole number" in refusal
        assert len(refusal) < 1_000


async def test_large_messages_that_nobody_reads_take_a_bounded_memory() -> None:
    count, beat = 60, b'{"type":"Beat","service":"router","id":"router-0","epoch":1,"more":"%s"}' % (b"x" * LARGE)
    async with echoing() as (port, serving, asking), stranger(port) as someone:
        beats = await serving.subscribe(HEARTBEAT)
        for _ in range(count):
            someone.say(BEATS, b"", b"NATS/1.0\r\n\r\n", beat)
            await someone.heard()
            await serving.flush()  # otherwise the server cuts off a client that reads too slowly
        assert serving.counts["dropped_slow_reader"] == count - 32
        for _ in range(32):
            await anext(aiter(beats))
        asking.publish(HEARTBEAT, Beat(service="router", id="router-0", epoch=7), service="router", id="router-0")
        assert (await anext(aiter(beats))).message.epoch == 7


async def test_large_calls_at_once_take_a_bounded_memory() -> None:
    count, ended = 100, asyncio.Event()

    async def wait(message: Named, context: Context) -> Named:
        await ended.wait()
        return message

    async with echoing() as (port, serving, asking), stranger(port) as someone:
        await serving.serve(INFO, [Endpoint(WAIT, wait)])
        served = serving._services.by_id["echo-0"].endpoints[1].served
        for _ in range(count):
            body = b'{"model":"m","more":"%s"}' % (b"x" * LARGE)
            someone.say(b"livescale.test.svc.echo.wait", b"", b"NATS/1.0\r\n\r\n", body)
            await someone.heard()
            await serving.flush()
        assert (len(served.running), served.stats.num_errors) == (64, count - 64)
        ended.set()
        await works(asking)
        assert (served.running_bytes, len(served.running)) == (0, 0)
