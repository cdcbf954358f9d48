"""Workers whose bits would differ are not in one pool."""

import pytest

from services.registry.kernels import check_kernels
from shared.bus.contract import Refusal
from shared.messages.membership import Join, LeaseState, Member


def join(id: str, kernels: str | None) -> Join:
    return Join(service="worker", id=id, pid=1, host="a", kernels=kernels)


def member(id: str, kernels: str | None, lease: LeaseState = "alive") -> Member:
    return Member(service="worker", id=id, pid=2, host="a", epoch=1, lease=lease, kernels=kernels)


def test_a_worker_with_other_kernels_is_refused() -> None:
    said = "worker-1 computes with the kernels torch, worker-0 with avx512_bf16: .* --kernels torch"
    with pytest.raises(Refusal, match=said):
        check_kernels(join("worker-1", "torch"), [member("gateway-0", None), member("worker-0", "avx512_bf16")])


def test_a_worker_with_the_same_kernels_of_another_release_is_refused() -> None:
    with pytest.raises(Refusal, match=r"worker-0 with avx512_bf16-1: .* install the same ones for all of them"):
        check_kernels(join("worker-1", "avx512_bf16-2"), [member("worker-0", "avx512_bf16-1")])


def test_who_has_the_same_or_computes_elsewhere_is_taken() -> None:
    members = [member("worker-0", "torch"), member("worker-9", None)]
    check_kernels(join("worker-1", "torch"), members)
    check_kernels(join("worker-1", None), members)


def test_who_comes_again_may_have_changed_and_the_dead_do_not_count() -> None:
    check_kernels(join("worker-0", "torch"), [member("worker-0", "avx512_bf16")])
    check_kernels(join("worker-1", "torch"), [member("worker-0", "avx512_bf16", "dead")])
