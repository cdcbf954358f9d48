"""Which processes may join the system, and which are refused."""

import msgspec
import pytest

from livescale.services.registry.join_checks import check_kernels, check_place
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Join, LeaseState, Member, ServiceName
from livescale.shared.topology.file import find_topology

CLUSTER = find_topology("cluster-b")


def join(id: str, place: str | None, service: ServiceName = "worker") -> Join:
    return Join(service=service, id=id, pid=1, host="b0", place=place)


def member(id: str, place: str, service: ServiceName = "worker", lease: LeaseState = "alive") -> Member:
    return Member(service=service, id=id, pid=2, host="b0", epoch=1, lease=lease, place=place)


def test_a_worker_is_at_a_gpu_and_a_host_at_a_host() -> None:
    check_place(join("worker-0", "b1/7"), [], CLUSTER)
    check_place(join("host-0", "b1", "host"), [], CLUSTER)
    check_place(join("router-0", None, "router"), [], CLUSTER)


@pytest.mark.parametrize(
    ("id", "place", "service", "said"),
    [
        (
            "worker-0",
            "b2/0",
            "worker",
            "'b2/0' is not a GPU of topology cluster-b; give --place, a GPU such as b0/0, b0/1",
        ),
        ("worker-0", "b0", "worker", "'b0' is not a GPU"),
        ("host-0", "b0/0", "host", "'b0/0' is not a host of topology cluster-b; give --place, a host such as b0, b1"),
        ("worker-0", None, "worker", "worker-0: it names no place; give --place"),
    ],
)
def test_a_place_that_the_topology_lacks_is_refused(
    id: str, place: str | None, service: ServiceName, said: str
) -> None:
    with pytest.raises(Refusal) as refused:
        check_place(join(id, place, service), [], CLUSTER)
    assert said in refused.value.message


def test_a_place_that_another_has_is_refused() -> None:
    with pytest.raises(Refusal, match="'b0/1' is taken by worker-1: choose another with --place"):
        check_place(join("worker-0", "b0/1"), [member("worker-1", "b0/1")], CLUSTER)
    with pytest.raises(Refusal, match="'here' is taken by worker-1"):
        check_place(join("worker-0", "here"), [member("worker-1", "here")], None)


def test_a_process_that_joins_again_takes_its_own_place_and_that_of_the_dead() -> None:
    check_place(join("worker-0", "b0/1"), [member("worker-0", "b0/1")], CLUSTER)
    check_place(join("worker-0", "b0/1"), [member("worker-1", "b0/1", lease="suspect")], CLUSTER)
    check_place(join("worker-0", "b0/1"), [member("worker-1", "b0/1", lease="dead")], CLUSTER)


def test_without_a_topology_nobody_need_say_where_it_is() -> None:
    check_place(join("worker-0", None), [member("worker-1", "x")], None)
    unsaid = msgspec.structs.replace(member("worker-1", "x"), place=None)
    check_place(join("worker-0", None), [unsaid], None)


def join_with(id: str, kernels: str | None) -> Join:
    return Join(service="worker", id=id, pid=1, host="a", kernels=kernels)


def member_with(id: str, kernels: str | None, lease: LeaseState = "alive") -> Member:
    return Member(service="worker", id=id, pid=2, host="a", epoch=1, lease=lease, kernels=kernels)


@pytest.mark.parametrize(
    ("own", "others", "setting"),
    [
        ("portable-1a", "amx-2b", "this worker --kernels amx-emulated"),
        ("avx512_bf16-1a", "amx-2b", "this worker --kernels amx-emulated"),
        ("torch-2.13.0-AVX2-1a", "amx-2b", "this worker --kernels amx-emulated"),
        ("amx-1a", "avx512_bf16-2b", "this worker --kernels avx512_bf16; if its CPU does not have them, .* portable"),
        ("amx-1a", "portable-2b", "this worker --kernels portable$"),
        ("amx-1a", "torch-2.13.0-AVX2-2b", "all workers --kernels portable, .* C compiler"),
        ("torch-2.13.0-AVX512-1a", "torch-2.13.0-AVX2-2b", "all workers --kernels portable"),
        ("amx-1a", "amx-2b", "different kernels of the same name: install the same release"),
    ],
)
def test_a_worker_with_other_bits_is_refused_and_told_which_setting_fits(own: str, others: str, setting: str) -> None:
    said = (
        f"worker-1 computes with the kernels {own}, worker-0 with {others}, whose results differ in bits. .*{setting}"
    )
    with pytest.raises(Refusal, match=said):
        check_kernels(join_with("worker-1", own), [member_with("gateway-0", None), member_with("worker-0", others)])


def test_a_worker_with_the_same_bits_or_another_device_is_taken() -> None:
    members = [member_with("worker-0", "torch"), member_with("worker-9", None)]
    check_kernels(join_with("worker-1", "torch"), members)
    check_kernels(join_with("worker-1", None), members)


def test_a_process_that_joins_again_may_have_changed_and_the_dead_do_not_count() -> None:
    check_kernels(join_with("worker-0", "torch"), [member_with("worker-0", "avx512_bf16")])
    check_kernels(join_with("worker-1", "torch"), [member_with("worker-0", "avx512_bf16", "dead")])
