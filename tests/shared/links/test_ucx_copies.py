"""Between processes of one machine a receiver copies large messages itself, from where they lie at the sender."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable

import pytest
from ucxx._lib.arr import Array
from ucxx._lib.libucxx import UCXRequest

from livescale.shared.links import process_memory
from livescale.shared.links.contract import Buffer, LinkError
from livescale.shared.links.open import open_link
from livescale.shared.links.process_memory import ProcessMemory
from livescale.shared.links.ucx_engine import UcxEngine
from livescale.shared.links.ucx_peer import COPIED, LEAST_COPIED, PLACE
from livescale.shared.runtime.settings import LinkSettings
from tests.shared.links.conftest import Pair, connected, count_descriptors, until
from tests.shared.links.peer_process import CHUNK

PIECE = 65_536
PIECES = LEAST_COPIED // PIECE


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "PIECE_BYTES", PIECE)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = await connected(LinkSettings(transport="ucx"))
    yield pair
    await pair.a.close()
    await pair.b.close()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each message that a receiver set out to copy was copied."""
    made, copy = list[bool](), ProcessMemory.copy

    def noting(self: ProcessMemory, *how: object) -> bool:
        made.append(copy(self, *how))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(ProcessMemory, "copy", noting)
    return made


async def move(pair: Pair, size: int, on_piece: Callable[[memoryview], None] | None = None) -> bool:
    """Whether a message arrives as it was sent."""
    sent, got = os.urandom(size), bytearray(size)
    await asyncio.gather(
        pair.to_b.send(1, Buffer(memoryview(sent)), timeout=60),
        pair.to_a.receive(1, Buffer(memoryview(got), on_piece), timeout=60),
    )
    return sent == got


async def test_large_messages_are_copied_and_small_ones_are_sent(pair: Pair, copies: list[bool]) -> None:
    pieces = list[int]()
    assert await move(pair, LEAST_COPIED, lambda piece: pieces.append(piece.nbytes))
    assert copies == [True]
    assert pieces == [PIECE] * PIECES
    assert await move(pair, LEAST_COPIED - 1)
    assert copies == [True]


async def test_words_about_a_copy_that_leave_at_once_are_not_watched(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await move(pair, LEAST_COPIED)  # both ends are connected
    watched, watch = list[int](), UcxEngine.watch

    def noting(self: UcxEngine, request: UCXRequest, memory: Array) -> asyncio.Future[str | None]:
        watched.append(memory.nbytes)
        return watch(self, request, memory)

    monkeypatch.setattr(UcxEngine, "watch", noting)
    assert await move(pair, LEAST_COPIED)
    assert sorted(watched) == [len(COPIED), PLACE.size]  # those that come


async def test_what_the_kernel_refuses_to_copy_is_sent(
    pair: Pair, copies: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int, address: int, into: memoryview) -> None:
        raise PermissionError

    monkeypatch.setattr(process_memory, "read", refuse)
    pieces = list[int]()
    assert await move(pair, LEAST_COPIED, lambda piece: pieces.append(piece.nbytes))
    assert copies == [False]
    assert not pieces


async def test_where_ucx_is_told_to_leave_cma_alone_everything_is_sent(
    copies: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    pair = await connected(LinkSettings(transport="ucx"))
    assert await move(pair, LEAST_COPIED)
    assert not copies
    await pair.a.close()
    await pair.b.close()


@pytest.mark.parametrize("ends", ["cancelled", "closed"])
async def test_once_a_receive_has_ended_nothing_is_written_any_more(pair: Pair, ends: str) -> None:
    unheard = list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
    begun, go_on = threading.Event(), threading.Event()

    def pause(piece: memoryview) -> None:
        begun.set()
        go_on.wait(60)

    got = bytearray(LEAST_COPIED)
    sending = asyncio.create_task(pair.to_b.send(1, Buffer(memoryview(bytes([1]) * LEAST_COPIED)), timeout=60))
    receiving = asyncio.create_task(pair.to_a.receive(1, Buffer(memoryview(got), pause), timeout=60))
    await asyncio.to_thread(begun.wait, 60)
    if ends == "cancelled":
        receiving.cancel()
    else:
        await pair.to_b.close()
    with pytest.raises(LinkError):
        await sending
    assert not receiving.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError if ends == "cancelled" else LinkError):
        await receiving
    assert got == bytes([1]) * PIECE + bytes(LEAST_COPIED - PIECE)
    del receiving
    gc.collect()
    assert not unheard


def sender() -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.shared.links.peer_process", "ucx"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def test_a_sender_that_is_killed_in_mid_copy_is_a_link_error_and_leaves_no_descriptor() -> None:
    link = await open_link(LinkSettings(transport="ucx"))
    descriptors = 0
    for _ in range(3):
        with sender() as process:
            assert process.stdin is not None
            assert process.stdout is not None
            address = bytes.fromhex(await asyncio.to_thread(process.stdout.readline))
            process.stdin.write(link.address.hex() + "\n")
            process.stdin.flush()
            peer = await link.connect(address, timeout=60)
            await peer.receive(0, Buffer(memoryview(bytearray(CHUNK))), timeout=60)

            def kill(piece: memoryview, process: "subprocess.Popen[str]" = process) -> None:
                process.send_signal(signal.SIGKILL)
                process.wait()

            with pytest.raises(LinkError, match="receive 0x1"):
                await peer.receive(1, Buffer(memoryview(bytearray(CHUNK)), kill), timeout=60)
        if not descriptors:
            descriptors = count_descriptors()  # libraries open some of their own once
    await until(lambda: count_descriptors() <= descriptors)
    await link.close()
