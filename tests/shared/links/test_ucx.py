"""What UCX alone does, and what the address of its link tells."""

import pytest

from livescale.shared.links.contract import LinkError
from livescale.shared.links.link_path import MemoryKind
from livescale.shared.links.process_memory import NOWHERE, own_mark
from livescale.shared.links.ucx import link_address, memory_at, readable_memory, worker_address
from livescale.shared.runtime.settings import LinkSettings
from tests.shared.links.conftest import connected

WORKER = b"a worker's address"


@pytest.mark.parametrize("memory", ["host", "pinned", "cuda"])
def test_an_address_tells_the_kind_of_memory_and_its_worker(memory: MemoryKind) -> None:
    address = link_address(WORKER, memory, own_mark())
    assert memory_at(address) == memory
    assert worker_address(address) == WORKER


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(LinkError, match="is not the address of a UCX link"):
        memory_at(b"tcp:127.0.0.1:1")


def test_a_damaged_address_is_refused() -> None:
    address = bytearray(link_address(WORKER, "host", own_mark()))
    address[-1] ^= 1
    for damaged in (bytes(address), bytes(address[:40]), b"ucx:host:"):
        with pytest.raises(LinkError, match="is a damaged address"):
            worker_address(damaged)


@pytest.mark.parametrize(("here", "there", "readable"), [("host", "pinned", True), ("host", "cuda", False)])
def test_the_hosts_memory_alone_is_read(here: MemoryKind, there: MemoryKind, readable: bool) -> None:
    mine, theirs = (link_address(WORKER, memory, own_mark()) for memory in (here, there))
    assert (readable_memory(mine, theirs) is not None) == readable
    assert (readable_memory(theirs, mine) is not None) == readable


def test_neither_end_reads_where_one_cannot_be_read() -> None:
    mine, theirs = link_address(WORKER, "host", own_mark()), link_address(WORKER, "host", NOWHERE)
    assert readable_memory(mine, theirs) is None
    assert readable_memory(theirs, mine) is None


async def test_what_the_environment_takes_from_ucx_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    pair = await connected(LinkSettings())
    assert pair.to_b.path.name == "tcp"
    await pair.a.close()
    await pair.b.close()
