"""Topologies for tests: any valid one."""

from hypothesis import strategies as st

from livescale.shared.topology.file import DomainEntry, GpuEntry, HostEntry, LeafEntry, TopologyFile, expand
from livescale.shared.topology.topology import Topology
from livescale.shared.units import ByteRate, Size

counts = st.none() | st.integers(1, 3)
rates = st.integers(1, 10**12).map(ByteRate)
maybe_rates = st.just(ByteRate(0)) | rates
sizes = st.integers(1, 10**12).map(Size)


def gpu_entries(domains: list[str]) -> st.SearchStrategy[GpuEntry]:
    own = st.builds(GpuEntry, count=st.integers(1, 3), memory=sizes, host_link=rates, nic=maybe_rates, scale_up=rates)
    alone = st.builds(GpuEntry, count=st.integers(1, 3), memory=sizes, host_link=rates, nic=maybe_rates)
    if not domains:
        return own | alone
    shared = st.builds(GpuEntry, memory=sizes, host_link=rates, nic=maybe_rates, domain=st.sampled_from(domains))
    return own | alone | shared


@st.composite
def topology_files(draw: st.DrawFn) -> TopologyFile:
    """Generate files as an operator may write them: hosts h.., domains d.., leaves l.."""
    leaves = [
        draw(st.builds(LeafEntry, name=st.just(f"l{letter}"), count=counts, uplink=maybe_rates, uplink_in=maybe_rates))
        for letter in "ab"[: draw(st.integers(1, 2))]
    ]
    domains = [
        draw(st.builds(DomainEntry, name=st.just(f"d{letter}"), count=counts, bandwidth=rates))
        for letter in "ab"[: draw(st.integers(0, 2))]
    ]
    hosts = [
        draw(
            st.builds(
                HostEntry,
                name=st.just(f"h{letter}"),
                count=counts,
                leaf=st.sampled_from([leaf.name for leaf in leaves]),
                memory=sizes,
                nic=rates,
                nic_out=maybe_rates,
                disk=rates,
                gpus=st.lists(gpu_entries([domain.name for domain in domains]), max_size=3).map(tuple),
            )
        )
        for letter in "abc"[: draw(st.integers(1, 3))]
    ]
    return TopologyFile(name="any", leaves=tuple(leaves), domains=tuple(domains), hosts=tuple(hosts))


def topologies() -> st.SearchStrategy[Topology]:
    return topology_files().map(lambda file: expand(file, "any"))
