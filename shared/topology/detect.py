"""This machine as a topology of one host. Figures that its kernel does not tell are assumed, on the low side."""

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from livescale.shared.topology.topology import (
    ASSUMED_DISK,
    ASSUMED_MEMORY,
    ASSUMED_NIC,
    Domain,
    Gpu,
    Leaf,
    Topology,
    TopologyHost,
)
from livescale.shared.units import format_bit_rate, format_rate

NETWORK_CARDS = Path("/sys/class/net")
PCI_DEVICES = Path("/sys/bus/pci/devices")
MEMINFO = Path("/proc/meminfo")
CUDA_DEVICE = Path("/dev/nvidiactl")

ASSUMED_PCI = 12e9  # PCIe 3.0 with 16 lanes

# Bytes a second of one lane by transfers a second: 8b/10b below 8 GT/s, 128b/130b from there on.
LANE_RATES = {"2.5": 0.25e9, "5.0": 0.5e9, "8.0": 0.985e9, "16.0": 1.969e9, "32.0": 3.938e9, "64.0": 7.563e9}


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU. `link` is its rate to the host's memory, `peers` are the GPUs whose memory it reaches; None is unknown."""

    memory_bytes: int
    link: float | None = None
    peers: frozenset[int] = frozenset()


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine tells of itself. Without GPUs each of its cores acts as one."""

    host: str
    cores: int
    memory_bytes: int
    nic: float | None = None
    gpus: tuple[GpuFacts, ...] = ()


class Detected(msgspec.Struct, frozen=True):
    """A topology of this machine, and which of its figures are assumed."""

    topology: Topology
    assumed: tuple[str, ...]


def detect() -> Detected:
    """Look at this machine: its GPUs, network cards, memory and disk, and what is assumed of them."""
    return describe(
        MachineFacts(
            host=socket.gethostname(),
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=memory_bytes(MEMINFO),
            nic=fastest_card(NETWORK_CARDS),
            gpus=tuple(cuda_gpus(PCI_DEVICES)) if CUDA_DEVICE.exists() else (),
        )
    )


def describe(facts: MachineFacts) -> Detected:
    """Make a topology of a machine: a host, its GPUs, one domain for those that reach each other, one leaf."""
    name = re.sub(r"[^A-Za-z0-9._-]+|^[._-]+", "", facts.host) or "host"
    share = facts.memory_bytes // facts.cores
    cores = [GpuFacts(memory_bytes=share, peers=frozenset(range(facts.cores)))] * facts.cores
    gpus = facts.gpus or tuple(cores)
    link = ASSUMED_PCI if facts.gpus else ASSUMED_MEMORY
    joined = all(set(range(len(gpus))) - {index} <= gpu.peers for index, gpu in enumerate(gpus)) and len(gpus) > 1
    host = TopologyHost(
        id=name,
        leaf="leaf0",
        gpus=[
            Gpu(
                id=f"{name}/{index}",
                domain=name if joined else f"{name}/{index}",
                memory_bytes=gpu.memory_bytes,
                host_link=gpu.link or link,
            )
            for index, gpu in enumerate(gpus)
        ],
        memory_bytes=facts.memory_bytes,
        nic_in=facts.nic or ASSUMED_NIC,
        nic_out=facts.nic or ASSUMED_NIC,
        disk=ASSUMED_DISK,
    )
    domains = [Domain(id=name, bandwidth=link)] if joined else [Domain(id=gpu.id) for gpu in host.gpus]
    topology = Topology(name=name, hosts=[host], domains=domains, leaves=[Leaf(id="leaf0")])
    return Detected(topology, tuple(assumptions(facts, link, joined=joined)))


def assumptions(facts: MachineFacts, link: float, *, joined: bool) -> Iterator[str]:
    yield f"disk: {format_rate(ASSUMED_DISK)}; no kernel knows what a disk gives"
    if facts.nic is None:
        yield f"network card: {format_bit_rate(ASSUMED_NIC)}; none in {NETWORK_CARDS} states a speed"
    if not facts.gpus:
        yield f"no GPU: each core acts as one, and copies {format_rate(link)}"
    elif joined:
        yield f"between GPUs: {format_rate(link)}; they reach each other's memory, at a rate that CUDA does not tell"
    if any(gpu.link is None for gpu in facts.gpus):
        yield f"between host and GPU: {format_rate(link)}; {PCI_DEVICES} does not tell"


def memory_bytes(meminfo: Path) -> int:
    """All memory of this machine in bytes, from /proc/meminfo."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(fields["MemTotal"].split()[0]) * 1024


def fastest_card(cards: Path) -> float | None:
    """Bytes a second of the fastest network card that is up and states its speed (in Mbit/s)."""
    rates = [speed_of(card) * 1e6 / 8 for card in sorted(cards.iterdir())]
    return max(filter(None, rates), default=None)


def speed_of(card: Path) -> int:
    """The speed of a network card in Mbit/s; 0 where the kernel does not tell it, as of cards that are virtual or
    down."""
    try:
        is_up = (card / "operstate").read_text().strip() == "up"
        return max(0, int((card / "speed").read_text())) if is_up else 0
    except (OSError, ValueError):
        return 0


def cuda_gpus(pci_devices: Path) -> Iterator[GpuFacts]:
    """The GPUs that CUDA shows this process; none where torch was built without CUDA."""
    import torch  # slow to import, and only needed where there is a GPU

    count = torch.cuda.device_count()
    for index in range(count):
        properties: Any = torch.cuda.get_device_properties(index)
        address = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        yield GpuFacts(
            memory_bytes=properties.total_memory,
            link=pci_rate(pci_devices / address),
            peers=frozenset(
                other for other in range(count) if other != index and torch.cuda.can_device_access_peer(index, other)
            ),
        )


def pci_rate(device: Path) -> float | None:
    """Bytes a second and direction that a GPU's slot can carry. The current figure would be lower, as a GPU idles."""
    try:
        speed = (device / "max_link_speed").read_text().split()[0]
        lanes = int((device / "max_link_width").read_text())
    except (OSError, ValueError, IndexError):
        return None
    return LANE_RATES[speed] * lanes if speed in LANE_RATES and lanes > 0 else None
