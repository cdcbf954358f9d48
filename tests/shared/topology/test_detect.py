"""This machine as a topology: what it tells is taken, what it does not tell is assumed and said."""

from pathlib import Path

import pytest

from livescale.shared.topology.detect import (
    GpuFacts,
    MachineFacts,
    describe,
    detect,
    fastest_card,
    memory_bytes,
    pci_rate,
)

CPU = MachineFacts(host="box", cores=4, memory_bytes=64 * 2**30, nic=1.25e9)


def gpus(count: int, *, reach: bool, link: float | None = 32e9) -> tuple[GpuFacts, ...]:
    return tuple(
        GpuFacts(memory_bytes=80 * 10**9, link=link, peers=frozenset(range(count)) - {index} if reach else frozenset())
        for index in range(count)
    )


def test_this_machine_is_one_host_with_at_least_one_gpu() -> None:
    found = detect()
    assert len(found.topology.hosts) == 1
    assert found.topology.gpus
    assert any(note.startswith("disk: 500 MB/s") for note in found.assumed)


def test_without_gpus_each_core_acts_as_one_in_one_domain() -> None:
    found = describe(CPU)
    assert [gpu.id for gpu in found.topology.gpus] == ["box/0", "box/1", "box/2", "box/3"]
    assert {gpu.domain for gpu in found.topology.gpus} == {"box"}
    assert {gpu.memory_bytes for gpu in found.topology.gpus} == {16 * 2**30}
    assert found.topology.path("box/0", "box/3").over == "domain"
    assert found.topology.place_of("box/0").nic_out == 1.25e9
    assert any("each core acts as one" in note for note in found.assumed)


def test_a_single_core_is_alone_in_its_domain() -> None:
    one = MachineFacts(host="box", cores=1, memory_bytes=2**30)
    assert [domain.id for domain in describe(one).topology.domains] == ["box/0"]


def test_gpus_that_reach_each_other_are_one_domain_of_assumed_bandwidth() -> None:
    found = describe(MachineFacts(host="box", cores=4, memory_bytes=2**30, nic=1e9, gpus=gpus(2, reach=True)))
    assert found.topology.path("box/0", "box/1").over == "domain"
    assert found.topology.path("box", "box/1").rate == 32e9
    assert [note.split(":")[0] for note in found.assumed] == ["disk", "between GPUs"]


def test_gpus_that_do_not_reach_each_other_go_through_the_hosts_memory() -> None:
    found = describe(MachineFacts(host="box", cores=4, memory_bytes=2**30, nic=1e9, gpus=gpus(2, reach=False)))
    assert found.topology.path("box/0", "box/1").over == "host_link"
    assert [note.split(":")[0] for note in found.assumed] == ["disk"]


def test_what_is_not_known_is_assumed_and_said() -> None:
    found = describe(MachineFacts(host="box", cores=4, memory_bytes=2**30, gpus=gpus(1, reach=False, link=None)))
    assert [note.split(":")[0] for note in found.assumed] == ["disk", "network card", "between host and GPU"]
    assert found.topology.place_of("box").nic_in == 125e6


@pytest.mark.parametrize(("name", "id"), [("box.lab-1", "box.lab-1"), ("my box", "mybox"), ("_x", "x"), ("é", "host")])
def test_a_host_name_becomes_an_id(name: str, id: str) -> None:
    assert describe(MachineFacts(host=name, cores=1, memory_bytes=2**30)).topology.hosts[0].id == id


def make_card(cards: Path, name: str, **content: str) -> None:
    (cards / name).mkdir()
    for file, text in content.items():
        (cards / name / file).write_text(text)


def test_the_fastest_card_that_is_up_counts(tmp_path: Path) -> None:
    make_card(tmp_path, "lo", operstate="unknown\n")
    make_card(tmp_path, "eth0", operstate="up\n", speed="10000\n")
    make_card(tmp_path, "eth1", operstate="up\n", speed="100000\n")
    make_card(tmp_path, "eth2", operstate="down\n", speed="400000\n")
    make_card(tmp_path, "veth", operstate="up\n", speed="-1\n")
    assert fastest_card(tmp_path) == 12.5e9


def test_no_card_that_states_its_speed_is_unknown_and_not_zero(tmp_path: Path) -> None:
    make_card(tmp_path, "veth", operstate="up\n", speed="-1\n")
    assert fastest_card(tmp_path) is None


def test_memory_is_what_the_kernel_has(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       65536 kB\nMemFree:        1 kB\n")
    assert memory_bytes(meminfo) == 64 * 2**20


@pytest.mark.parametrize(
    ("speed", "width", "rate"),
    [
        ("32.0 GT/s PCIe", "16", 63e9),
        ("8.0 GT/s PCIe", "4", 3.94e9),
        ("Unknown", "16", None),
        ("16.0 GT/s PCIe", "0", None),
    ],
)
def test_a_slot_carries_its_lanes(tmp_path: Path, speed: str, width: str, rate: float | None) -> None:
    (tmp_path / "max_link_speed").write_text(speed)
    (tmp_path / "max_link_width").write_text(width)
    assert pci_rate(tmp_path) == (None if rate is None else pytest.approx(rate, rel=0.01))


def test_a_device_that_is_not_listed_has_no_known_rate(tmp_path: Path) -> None:
    assert pci_rate(tmp_path / "0000:3b:00.0") is None
