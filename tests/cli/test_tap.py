import asyncio
import os
import sys
from pathlib import Path

import click.testing
import msgspec
import pytest

from livescale.services.cli.tap import describe, tap
from livescale.shared.bus.codec import encode
from livescale.shared.bus.nats import NatsBus
from livescale.shared.messages.membership import Beat, Join
from livescale.shared.messages.requests import Admit, Cancel, Submit, TokenFrame, Tokens
from livescale.shared.subjects import CANCEL, HEARTBEAT
from tests.nats_server import NatsServer

REQUEST = Submit(request_id="req-1", model="m", gateway="gateway-0", prompt=list(range(17)), deadline=1.0)


@pytest.mark.parametrize("json", [False, True])
def test_a_message_is_its_type_and_fields(json: bool) -> None:
    beat = Beat(service="router", id="router-0", epoch=3)
    assert describe(encode(beat, json=json), full=False) == "Beat  service=router id=router-0 epoch=3"


def test_token_ids_are_counts_unless_asked_for() -> None:
    assert "prompt=<17 tokens> generated=<0 tokens>" in describe(encode(Admit(request=REQUEST)), full=False)
    frame = TokenFrame(worker="w", step=1, rows=[Tokens(request_id="r", index=0, token_ids=[101, 102])])
    assert "token_ids=<2 tokens>" in describe(encode(frame), full=False)
    assert "token_ids=[101, 102]" in describe(encode(frame), full=True)


def test_long_values_are_cut_unless_asked_for() -> None:
    join = Join(service="worker", id="w", pid=1, host="h" * 200, address=b"\x00" * 30)
    shown = describe(encode(join), full=False)
    assert len(shown) < 200
    assert "address=<30 bytes>" in shown
    assert "h" * 200 in describe(encode(join), full=True)
    many = msgspec.msgpack.encode({"type": "T", "items": list(range(10))})
    assert describe(many, full=False) == "T  items=[0, 1, 2, 3, +6]"


@pytest.mark.parametrize("data", [b"\xc1", b"\x82\xa1a", b'{"a"', b"\xff\xff", b"[1]", b'{"a": "\xff"}'])
def test_what_is_no_message_is_said(data: bytes) -> None:
    assert describe(data, full=False) == f"{len(data)} bytes that are no message"


@pytest.mark.system
def test_no_server_is_a_clear_error(closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livescale.services.cli.tap.CONNECT_SECONDS", 0.2)
    url = f"nats://127.0.0.1:{closed_port}"
    result = click.testing.CliRunner().invoke(tap, ["--nats-url", url, "--limit", "1"])
    assert result.exit_code == 1
    assert url in result.output


@pytest.mark.system
async def test_traffic_is_printed_as_it_passes(tmp_path: Path) -> None:
    async with NatsServer.start(tmp_path) as server:
        bus = await NatsBus.connect(server.url, "default", "test", timeout=60)
        child = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-c",
                "from livescale.services.cli.tap import tap; tap()",
                "--subject",
                "hb.>",
                "--limit",
                "2",
            ),
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"NATS_URL": server.url},
        )
        talking = asyncio.create_task(talk(bus))
        async with asyncio.timeout(60):
            out, _ = await child.communicate()
        talking.cancel()
        await asyncio.wait([talking])
        await bus.close()
    assert child.returncode == 0
    shown = [text.split(" ", 1)[1] for text in out.decode().splitlines()]
    assert shown == ["hb.router.r-0  Beat  service=router id=r-0 epoch=1"] * 2


@pytest.mark.system
async def test_a_subject_that_is_none_is_named(tmp_path: Path) -> None:
    async with NatsServer.start(tmp_path) as server:
        arguments = ["--nats-url", server.url, "--subject", "a b"]
        result = await asyncio.to_thread(click.testing.CliRunner().invoke, tap, arguments)
    assert result.exit_code == 2
    assert "'a b' is not a NATS subject" in result.output


async def talk(bus: NatsBus) -> None:
    while True:
        bus.publish(CANCEL, Cancel(request_id="not listened to"))
        bus.publish(HEARTBEAT, Beat(service="router", id="r-0", epoch=1), service="router", id="r-0")
        await asyncio.sleep(0.02)  # so often that the command need not wait for it
