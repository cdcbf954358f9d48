"""Workers whose bits would differ are not in one pool."""

import pytest

from livescale.services.registry.kernels import check_kernels
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Join, LeaseState, Member


def join(id: str, kernels: str | None) -> Join:
    return Join(service="worker", id=id, pid=1, host="a", kernels=kernels)


def member(id: str, kernels: str | None, lease: LeaseState = "alive") -> Member:
    return Member(service="worker", id=id, pid=2, host="a", epoch=1, lease=lease, kernels=kernels)


@pytest.mark.parametrize(
    ("own", "others", "setting"),
    [
        ("portable-1a", "amx-2b", "this worker --kernels amx-emulated"),
        ("avx512_bf16-1a", "amx-2b", "this worker --kernels amx-emulated"),
        ("torch-2.13.0-AVX2-1a", "amx-2b", "this worker --kernels amx-emulated"),
        ("amx-1a", "avx512_bf16-2b", "this worker --kernels avx512_bf16; where its CPU lacks that, .* portable"),
        ("amx-1a", "portable-2b", "this worker --kernels portable$"),
        ("amx-1a", "torch-2.13.0-AVX2-2b", "all workers --kernels portable: .* C compiler"),
        ("torch-2.13.0-AVX512-1a", "torch-2.13.0-AVX2-2b", "all workers --kernels portable"),
        ("amx-1a", "amx-2b", "other kernels of the same name: install the same release"),
    ],
)
def test_a_worker_with_other_bits_is_refused_and_told_which_setting_fits(own: str, others: str, setting: str) -> None:
    said = f"worker-1 computes with the kernels {own}, worker-0 with {others}: their bits differ. .*{setting}"
    with pytest.raises(Refusal, match=said):
        check_kernels(join("worker-1", own), [member("gateway-0", None), member("worker-0", others)])


def test_who_has_the_same_or_computes_elsewhere_is_taken() -> None:
    members = [member("worker-0", "torch"), member("worker-9", None)]
    check_kernels(join("worker-1", "torch"), members)
    check_kernels(join("worker-1", None), members)


def test_who_comes_again_may_have_changed_and_the_dead_do_not_count() -> None:
    check_kernels(join("worker-0", "torch"), [member("worker-0", "avx512_bf16")])
    check_kernels(join("worker-1", "torch"), [member("worker-0", "avx512_bf16", "dead")])
