"""Which way bytes take: a table of what UCX has, and what it really has here."""

import pytest
import torch

from livescale.shared.links.contract import LinkError
from livescale.shared.links.link_path import MemoryKind, choose_path, memory_kind
from livescale.shared.links.open import open_link
from livescale.shared.links.ucx_engine import check_reach, memory_at
from livescale.shared.runtime.settings import LinkSettings
from tests.shared.links.conftest import Pair, connected

NEIGHBOURS = ("tcp", "cma", "sysv", "posix", "cuda_ipc")
RDMA = ("rc_mlx5", "dc_mlx5", "tcp")


@pytest.mark.parametrize(
    ("transports", "here", "there", "gpudirect", "name"),
    [
        (("tcp", "cma"), "host", "host", False, "cma"),
        (("tcp", "cma", "xpmem"), "pinned", "host", False, "xpmem"),
        (("tcp", "sysv", "posix"), "host", "host", False, "posix"),
        (("tcp",), "host", "host", True, "tcp"),
        (("self",), "host", "host", False, "self"),
        (RDMA, "pinned", "pinned", True, "dc_mlx5"),
        (NEIGHBOURS, "cuda", "cuda", False, "cuda_ipc"),
        (NEIGHBOURS, "cuda", "pinned", False, "cuda_copy, cma"),
        (NEIGHBOURS, "host", "cuda", True, "cuda_copy, cma"),
        (NEIGHBOURS, "host", "host", True, "cma"),
        (RDMA, "cuda", "cuda", True, "dc_mlx5, GPUDirect"),
        (RDMA, "cuda", "host", True, "dc_mlx5, GPUDirect"),
        (RDMA, "cuda", "cuda", False, "cuda_copy, dc_mlx5"),
        (("tcp",), "cuda", "cuda", True, "cuda_copy, tcp"),
        ((), "host", "host", False, "unknown"),
        (("gga",), "host", "host", False, "unknown"),
    ],
)
def test_the_best_of_what_ucx_has_is_named(
    transports: tuple[str, ...], here: MemoryKind, there: MemoryKind, gpudirect: bool, name: str
) -> None:
    path = choose_path(transports, here, there, gpudirect=gpudirect)
    assert path.name == name
    assert path.reason


def test_memory_is_of_three_kinds() -> None:
    assert [memory_kind(memory) for memory in ("host", "pinned", "cuda:3")] == ["host", "pinned", "cuda"]


def test_a_path_through_the_hosts_memory_says_so() -> None:
    assert "host's memory" in choose_path(("tcp",), "cuda", "host").reason
    assert "UCX names gga" in choose_path(("gga",), "host", "host").reason


async def test_a_link_names_the_path_it_really_has(pair: Pair, settings: LinkSettings) -> None:
    expected = {"socket": {"sockets"}, "ucx": {"cma", "posix", "sysv", "tcp"}}[settings.transport]
    assert pair.to_b.path.name in expected
    assert pair.to_a.path == pair.to_b.path


async def test_what_the_environment_takes_from_ucx_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    pair = await connected(LinkSettings())
    assert pair.to_b.path.name == "tcp"
    await pair.a.close()
    await pair.b.close()


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


def test_a_ucx_without_transport_for_gpus_is_refused_with_what_it_has() -> None:
    check_reach("cuda:0", {"tcp", "cuda_copy"})
    with pytest.raises(LinkError, match="UCX has cma, tcp here and for cuda:0 needs cuda_copy"):
        check_reach("cuda:0", {"tcp", "cma"})


async def test_an_address_tells_the_kind_of_memory_behind_it() -> None:
    link = await open_link(LinkSettings(), "pinned")
    assert memory_at(link.address) == "pinned"
    with pytest.raises(LinkError, match="is not the address of a UCX link"):
        memory_at(b"tcp:127.0.0.1:1")
    with pytest.raises(LinkError, match="damaged"):
        await link.connect(link.address + b"x", timeout=1)
    await link.close()
