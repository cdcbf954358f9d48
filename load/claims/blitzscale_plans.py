"""What BlitzScale says of loading parameters, against the planner's plans on its clusters.

Times that the paper works out are at line rate. Those that it measured are at the shares of it that links reach.
"""

from msgspec.structs import replace

from livescale.load.claims.claim import Band, Claim, Exact, Measured, around, one, several
from livescale.load.claims.plans import (
    HOST_LINK_SHARE,
    NETWORK_SHARE,
    NVLINK_SHARE,
    cluster,
    equal_blocks,
    gpus,
    planned,
)
from livescale.load.claims.workbench import Workbench
from livescale.load.simulate.start import flat_topology
from livescale.services.planner.plans.plan import ServingFlow

PAPER = "BlitzScale"
DRAFT = "BlitzScale (draft)"
LLAMA_8B = equal_blocks(16, 32)
MISTRAL_RANK = equal_blocks(24, 40)  # a rank of two
STOP_SECONDS = 0.5
KV_RATE = 5e9  # of a prefill instance to its decode instance, two fifths of the NIC
FAST = 2e9


def from_disk(bench: Workbench) -> Measured:
    return one(planned(cluster("cluster-a"), LLAMA_8B, [], ["a0/0"], "local", disks=["a0"]).seconds)


def from_disks(bench: Workbench) -> Measured:
    made = planned(cluster("cluster-a"), equal_blocks(140, 80), [], ["a0/0"], disks=["a0", "a1", "a2", "a3"])
    return one(made.seconds)


def needed_rate(gigabytes: float, layers: int) -> Measured:
    """Gbps at which one rank of four is loaded within the longest stop, from its time at the rate of cluster A."""
    a = cluster("cluster-a")
    seconds = planned(a, equal_blocks(gigabytes / 4, layers), ["a0/0"], ["a1/0"]).seconds
    return one(a.gpus[0].nic_in * 8e-9 * seconds / STOP_SECONDS)


def nvlink(bench: Workbench) -> Measured:
    made = planned(cluster("cluster-a"), LLAMA_8B, ["a0/0"], gpus("a0")[1:])
    return one(made.seconds / NVLINK_SHARE)


def longer_chain(bench: Workbench) -> Measured:
    times = []
    for hosts in (1, 2, 3):
        takers = [gpu for number in range(hosts) for gpu in gpus(f"a{number + 1}")]
        times.append(planned(cluster("cluster-a"), LLAMA_8B, gpus("a0"), takers).seconds)
    return several(*((f"{8 * (number + 1)} GPUs", seconds / times[0]) for number, seconds in enumerate(times)))


def faster_first(bench: Workbench) -> Measured:
    """Time a chain in which the source S and target T2 have NICs of twice T1's rate."""
    flat = flat_topology(3, FAST / 2)
    wide = [replace(host.gpus[0], nic_in=FAST, nic_out=FAST) for host in flat.hosts]
    hosts = [
        host if number == 1 else replace(host, nic_in=FAST, nic_out=FAST, gpus=[wide[number]])
        for number, host in enumerate(flat.hosts)
    ]
    made = planned(replace(flat, hosts=hosts), LLAMA_8B, ["h0/0"], ["h1/0", "h2/0"])
    return one(made.prediction.whole("h2/0") / made.prediction.whole("h1/0"))


def chains_and_tails(bench: Workbench) -> Measured:
    """How many of two targets can go live, with one source and with two."""
    flat = flat_topology(4, FAST)
    takers = ["h2/0", "h3/0"]
    tails = [len(planned(flat, LLAMA_8B, holders, takers).plan.tails) for holders in (["h0/0"], ["h0/0", "h1/0"])]
    return several(("one chain", tails[0]), ("two chains", tails[1]))


def sharded(bench: Workbench) -> Measured:
    alone = planned(cluster("cluster-a"), LLAMA_8B, ["a0/0"], gpus("a1", 4))
    four = planned(cluster("cluster-a"), LLAMA_8B, gpus("a0", 4), gpus("a1", 4))
    return one(four.seconds / alone.seconds)


def interference(bench: Workbench) -> Measured:
    """Flows of parameters in a direction of a NIC in which KV travels, where a source without KV is there, too."""
    prefill, decode = gpus("a0", 4), gpus("a1", 4)
    kv = [ServingFlow(id, "out", KV_RATE) for id in prefill] + [ServingFlow(id, "in", KV_RATE) for id in decode]
    made = planned(cluster("cluster-a"), LLAMA_8B, prefill + decode, gpus("a2") + gpus("a3"), serving=kv)
    network = [flow for flow in made.plan.flows if flow.over == "network"]
    shared = sum((flow.sender in prefill) + (flow.receiver in decode) for flow in network)
    return one(shared, note=f"{len(network)} flows over the network")


def twelve_gpus() -> list[list[str]]:
    """The workers of six instances of two ranks, by rank: three on each of two hosts."""
    return [[f"{host}/{2 * number + rank}" for host in ("a1", "a2") for number in range(3)] for rank in range(2)]


def scale_24b(bench: Workbench) -> Measured:
    """Two decode instances on another host send; every rank's shard has a plan of its own."""
    times = [
        planned(cluster("cluster-a"), MISTRAL_RANK, [f"a0/{rank}", f"a0/{2 + rank}"], takers).seconds
        for rank, takers in enumerate(twelve_gpus())
    ]
    whole = planned(cluster("cluster-a"), equal_blocks(48, 40), gpus("a0"), gpus("a1") + gpus("a2")).seconds
    note = f"With eight sources on the host, each of which has all 48 GB, it is {whole / NETWORK_SHARE:.2f} s."
    return one(max(times) / NETWORK_SHARE, note=note)


def allcache_24b(bench: Workbench) -> Measured:
    alone = planned(cluster("cluster-a"), MISTRAL_RANK, ["a1"], ["a1/0"], "local").seconds
    ours = planned(cluster("cluster-a"), MISTRAL_RANK, ["a1", "a2"], twelve_gpus()[0], "local").seconds
    note = f"Plans read each shard once a host, and pass it on over NVLink: {ours / HOST_LINK_SHARE:.2f} s."
    return one(alone / HOST_LINK_SHARE, note=note)


def one_to_sixteen(bench: Workbench) -> Measured:
    """Over one NIC to a second host, as in the paper. Plans use all NICs of the source's domain."""
    blocks = equal_blocks(14, 32)
    one_nic = planned(cluster("cluster-a"), blocks, ["a0/0"], gpus("a1")).seconds
    ours = planned(cluster("cluster-a"), blocks, ["a0/0"], gpus("a0")[1:] + gpus("a1")).seconds
    note = f"Plans pass it on within the source's domain first, and use eight NICs: {ours / NETWORK_SHARE:.2f} s."
    return one(one_nic / NETWORK_SHARE, note=note)


def sixteen_from_memory(bench: Workbench) -> Measured:
    alone = planned(cluster("cluster-a"), equal_blocks(14, 32), ["a0"], ["a0/0"], "local").seconds
    return one(alone / HOST_LINK_SHARE)


CLAIMS = (
    Claim(
        id="blitz-ssd-8b",
        source=f"{PAPER} 1",
        says="Llama3-8B takes 12.8 s from an SSD of 10 Gbps.",
        setting="cluster A, one GPU, 16 GB",
        bound=Exact((12.8,), "s", 0.01),
        measure=from_disk,
    ),
    Claim(
        id="blitz-ssd-70b",
        source=DRAFT,
        says="A model of 70B takes 28 s from the SSDs of four hosts.",
        setting="cluster A, 140 GB, four disks of 10 Gbps",
        bound=Exact((28.0,), "s", 0.01),
        measure=from_disks,
    ),
    Claim(
        id="blitz-rate-72b",
        source=f"{PAPER} 3",
        says="To load 72B on four GPUs within 500 ms takes 576 Gbps a GPU.",
        setting="cluster A, one rank of 36 GB over one hop",
        bound=Exact((576.0,), "Gbps", 1.0),
        measure=lambda bench: needed_rate(144, 80),
    ),
    Claim(
        id="blitz-rate-70b",
        source=DRAFT,
        says="To load Llama2-70B on four GPUs within 500 ms takes 560 Gbps a GPU.",
        setting="cluster A, one rank of 35 GB over one hop",
        bound=Exact((560.0,), "Gbps", 1.0),
        measure=lambda bench: needed_rate(140, 80),
    ),
    Claim(
        id="blitz-nvlink",
        source=f"{PAPER} 4",
        says="NVLink broadcasts 8B to 8 GPUs within 120 ms.",
        setting=f"cluster A, one host, {NVLINK_SHARE:.0%} of the line rate",
        bound=around(0.12, "s", 0.1),
        measure=nvlink,
        calibrated=f"The share of NVLink's line rate, {NVLINK_SHARE:.0%}, was fitted to this number.",
    ),
    Claim(
        id="blitz-fig13a",
        source=f"{PAPER} Fig. 13 (a)",
        says="The time of a chain does not depend on how many instances are in it.",
        setting="cluster A, 8B from one host to one, two and three",
        bound=Band("1", 0.95, 1.05),
        measure=longer_chain,
    ),
    Claim(
        id="blitz-fig13b",
        source=f"{PAPER} Fig. 13 (b)",
        says="With the faster target first, its downtime is half.",
        setting="three hosts, of which the source and one target have NICs of twice the rate",
        bound=Exact((0.5,), "", 0.02),
        measure=faster_first,
    ),
    Claim(
        id="blitz-fig12",
        source=f"{PAPER} Fig. 12",
        says="With a chain only its last target can be live; with two chains both targets can.",
        setting="four hosts with a GPU each",
        bound=Exact((1, 2), "targets"),
        measure=chains_and_tails,
    ),
    Claim(
        id="blitz-fig14",
        source=f"{PAPER} Fig. 14",
        says="Sharding over four GPUs with NVLink takes a quarter of the time.",
        setting="cluster A, 8B from four GPUs of a host to four of another",
        bound=Exact((0.25,), "", 0.0125),
        measure=sharded,
    ),
    Claim(
        id="blitz-interference",
        source=f"{PAPER} 5.1, Fig. 11",
        says="Parameters take no link in the direction in which KV travels.",
        setting="cluster A, four prefill and four decode instances, 8B to two more hosts",
        bound=Exact((0,), "flows"),
        measure=interference,
    ),
    Claim(
        id="blitz-fig21",
        source=f"{PAPER} Fig. 21",
        says="Six prefill instances of 24B are loaded after 1,200 ms.",
        setting="cluster A, TP2, two decode instances send to three instances on each of two hosts",
        bound=around(1.2, "s", 0.2),
        measure=scale_24b,
    ),
    Claim(
        id="blitz-fig21-allcache",
        source=f"{PAPER} Fig. 21",
        says="AllCache takes about 2,000 ms for it.",
        setting="a rank of 24 GB from its host's memory over its own PCIe link",
        bound=around(2.0, "s", 0.2),
        measure=allcache_24b,
        calibrated=f"The share of PCIe's line rate, {HOST_LINK_SHARE:.0%}, was fitted to this number.",
    ),
    Claim(
        id="blitz-draft-16",
        source=f"{DRAFT} Fig. 18",
        says="Llama2-7B is scaled from 1 to 16 instances in 1.1 s.",
        setting="cluster A, 14 GB over one NIC to the second host",
        bound=around(1.1, "s", 0.2),
        measure=one_to_sixteen,
    ),
    Claim(
        id="blitz-draft-16-memory",
        source=f"{DRAFT} Fig. 18",
        says="ServerlessLLM takes 3.1 s for it, from the hosts' memory.",
        setting="cluster A, 14 GB from the host's memory to a GPU over its own PCIe link",
        bound=around(3.1, "s", 0.2),
        measure=sixteen_from_memory,
    ),
)
