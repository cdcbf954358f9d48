"""What memory UCX reaches, and what its addresses say."""

import pytest

from livescale.shared.links.contract import LinkError
from livescale.shared.links.open import open_link
from livescale.shared.links.ucx import memory_at
from livescale.shared.links.ucx_engine import check_reach
from livescale.shared.runtime.settings import LinkSettings


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
