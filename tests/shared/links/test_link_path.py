"""Which way bytes take: a table of what UCX has, and what it really has here."""

import pytest

from livescale.shared.links.link_path import MemoryKind, choose_path, memory_kind
from livescale.shared.runtime.settings import LinkSettings
from tests.shared.links.conftest import Pair

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
