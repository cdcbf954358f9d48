"""Which link the settings open, and which they refuse."""

import asyncio
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from livescale.shared.links.contract import Buffer, LinkError
from livescale.shared.links.open import open_link, ucx_environment
from livescale.shared.runtime.settings import LinkSettings
from tests.shared.links.conftest import connected


def buffer(data: bytes | bytearray) -> Buffer:
    return Buffer(memoryview(data))


@pytest.mark.parametrize("bind", ["203.0.113.7", "0.0.0.0", "no-such-host.invalid"])
async def test_a_bind_address_that_is_not_this_machines_is_refused(settings: LinkSettings, bind: str) -> None:
    with pytest.raises(LinkError, match=f"bind: .*{re.escape(bind)}"):
        await open_link(LinkSettings(transport=settings.transport, bind=bind))


async def test_a_missing_ucx_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "livescale.shared.links.ucx", None)
    with pytest.raises(LinkError, match=r"UCX is not installed .*choose --transport socket"):
        await open_link(LinkSettings(transport="ucx"))


CANCELLING = """
import asyncio
from livescale.shared.links.contract import Buffer
from livescale.shared.runtime.settings import LinkSettings
from tests.shared.links.conftest import connected

async def main():
    pair = await connected(LinkSettings(transport="ucx"))
    large = Buffer(memoryview(bytes(1 << 22)))
    sending = [asyncio.create_task(pair.to_b.send(tag, large, timeout=60)) for tag in (1, 2)]
    await asyncio.sleep(0.05)  # until they are announced, which nobody answers
    for task in sending:
        task.cancel()
    await asyncio.wait(sending)
    await pair.a.close()
    await pair.b.close()

asyncio.run(main())
"""


@pytest.mark.skipif(find_spec("ucxx") is None, reason="ucxx is not installed")
def test_a_process_survives_large_sends_that_are_cancelled() -> None:
    """In a process of its own, as libucx reads its environment once, when the first link of the process is opened."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
    done = subprocess.run(
        [sys.executable, "-c", CANCELLING], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_ucx_watches_memory_the_cheap_way_where_nothing_needs_more(tmp_path: Path) -> None:
    assert ucx_environment("host", tmp_path / "none")["UCX_MEM_MMAP_HOOK_MODE"] == "reloc"
    for memory, devices in (("host", tmp_path), ("pinned", tmp_path / "none"), ("cuda:0", tmp_path / "none")):
        assert "UCX_MEM_MMAP_HOOK_MODE" not in ucx_environment(memory, devices)


async def test_a_shaped_link_takes_the_time_its_rate_says() -> None:
    shaped = await connected(LinkSettings(transport="socket", link_rate=10e6))
    began = time.perf_counter()
    for tag in range(5):
        await asyncio.gather(
            shaped.to_b.send(tag, buffer(bytes(1_000_000)), timeout=60),
            shaped.to_a.receive(tag, buffer(bytearray(1_000_000)), timeout=60),
        )
    # Five messages, of which an idle link lets one go at once.
    assert time.perf_counter() - began > 0.39  # 0.41 s on an idle machine
    await shaped.a.close()
    await shaped.b.close()


async def test_shaping_leaves_the_path_as_it_is() -> None:
    pair = await connected(LinkSettings(transport="socket", link_rate=1e9))
    assert pair.to_a.path.name == "sockets"
    await pair.a.close()
    await pair.b.close()


async def test_sockets_refuse_a_gpus_memory() -> None:
    with pytest.raises(LinkError, match=r"sockets do not reach the memory of cuda:0; choose --transport ucx"):
        await open_link(LinkSettings(transport="socket"), "cuda:0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
async def test_ucx_refuses_a_gpu_that_is_not_there() -> None:
    with pytest.raises(LinkError, match="device: cuda:0 cannot be used"):
        await open_link(LinkSettings(), "cuda:0")
