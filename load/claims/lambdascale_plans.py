"""What LambdaScale says of its multicast, against binomial plans on its testbeds."""

from livescale.load.claims.claim import Band, Claim, Exact, Measured, Order, around, cannot, one, several
from livescale.load.claims.plans import PlannedTransfers, cluster, equal_blocks, nodes, planned
from livescale.load.claims.workbench import Workbench
from livescale.services.planner.plans.execution_pipelines import pipeline_ready

PAPER = "LambdaScale"
BLOCKS = 16
LLAMA_13B = 26
LAYERS_13B = equal_blocks(LLAMA_13B, 40)
EQUAL = equal_blocks(LLAMA_13B, BLOCKS)
KS = (4, 2, 1)
SIZES = ((4, 1), (8, 1), (12, 1), (8, 2), (8, 4), (12, 4))  # nodes in all, and those that have the model
CUTS = (8, 16, 24, 32, 48)
BLOCK_SECONDS = 0.003  # what a block costs besides its bytes


def binomial(nodes_in_all: int, sources: int, *, layers: bool = False) -> PlannedTransfers:
    blocks = LAYERS_13B if layers else EQUAL
    testbed = cluster("lambdascale-1")
    return planned(testbed, blocks, nodes(0, sources), nodes(sources, nodes_in_all), "binomial", in_blocks=BLOCKS)


def steps_of(made: PlannedTransfers) -> int:
    return 1 + max(step for flow in made.plan.flows for step in flow.steps)


def steps_taken(bench: Workbench) -> Measured:
    return several(*((f"{n} nodes, k={k}", steps_of(binomial(n, k))) for n, k in SIZES))


def steps_to_have_all(bench: Workbench) -> Measured:
    """The steps after which the targets have every block between them."""
    return several(*((f"k={k}", first_whole(binomial(8, k))) for k in KS))


def first_whole(made: PlannedTransfers) -> int:
    first: dict[int, int] = {}
    for flow in made.plan.flows:
        for block, step in zip(flow.blocks, flow.steps, strict=True):
            first[block] = min(step, first.get(block, step))
    return 1 + max(first.values())


def formula(bench: Workbench) -> Measured:
    return one(binomial(8, 1).seconds)


def whole_model(bench: Workbench) -> Measured:
    return one(binomial(8, 1, layers=True).seconds)


def against_tree(bench: Workbench) -> Measured:
    tree = planned(cluster("lambdascale-1"), EQUAL, nodes(0, 1), nodes(1, 8), "tree")
    return one(tree.seconds / binomial(8, 1).seconds)


def first_pipelines(bench: Workbench) -> Measured:
    """Measure when the first pipeline can execute, for each number of sources."""
    return several(*((f"k={k}", first_pipeline(k)) for k in KS))


def first_pipeline(sources: int) -> float:
    made = binomial(8, sources, layers=True)
    return min(pipeline_ready(pipeline, made.prediction.ready) for pipeline in made.plan.pipelines)


def from_memory(bench: Workbench) -> Measured:
    """How much earlier the nodes can serve together than one of them alone, with copies in the memory of all."""
    hosts = [f"node{index}" for index in range(8)]
    made = planned(cluster("lambdascale-1"), LAYERS_13B, hosts, nodes(0, 8), "binomial")
    return one(made.seconds / pipeline_ready(made.plan.pipelines[0], made.prediction.ready))


def cold_start(bench: Workbench) -> Measured:
    found = []
    for name, gigabytes, layers in (("7B", 14, 32), ("13B", 26, 40)):
        blocks, testbed = equal_blocks(gigabytes, layers), cluster("lambdascale-1")
        remote = planned(testbed, blocks, ["node0"], nodes(1, 8), "binomial")
        disks = [f"node{index}" for index in range(1, 8)]
        disk = planned(testbed, blocks, [], nodes(1, 8), "local", disks=disks)
        found.append((name, disk.seconds / remote.seconds))
    return several(*found)


def cut(blocks: int) -> float:
    made = planned(
        cluster("lambdascale-1"),
        equal_blocks(LLAMA_13B, blocks),
        nodes(0, 1),
        nodes(1, 8),
        "binomial",
        in_blocks=blocks,
        block_seconds=BLOCK_SECONDS,
    )
    return made.seconds


def best_cut(bench: Workbench) -> Measured:
    times = {blocks: cut(blocks) for blocks in CUTS}
    note = ", ".join(f"{blocks}: {seconds:.3f} s" for blocks, seconds in times.items())
    return one(min(times, key=times.__getitem__), note=note)


def over_a_gigabit(bench: Workbench) -> Measured:
    """Minutes at 1 Gbps, from the time over a NIC of the testbed."""
    testbed = cluster("lambdascale-1")
    seconds = planned(testbed, equal_blocks(140, 80), nodes(0, 1), nodes(1, 2)).seconds
    return one(seconds * testbed.hosts[0].nic_in * 8e-9 / 60)


CLAIMS = (
    Claim(
        id="lambda-steps",
        source=f"{PAPER} 4.2",
        says="A sub-group of L = ceil(N/k) nodes is done after b + ceil(log2 L) - 1 steps.",
        setting="testbed 1, 16 equal blocks",
        bound=Exact((17, 18, 19, 17, 16, 17), "steps"),
        measure=steps_taken,
    ),
    Claim(
        id="lambda-collective",
        source=f"{PAPER} 4.2",
        says="After ceil(b/k) steps the targets have all blocks between them.",
        setting="testbed 1, 16 equal blocks, 8 nodes",
        bound=Exact((4, 8, 16), "steps"),
        measure=steps_to_have_all,
    ),
    Claim(
        id="lambda-formula",
        source=f"{PAPER} 4.2",
        says="13B gets to 8 nodes in 0.585 s, as the number of steps says.",
        setting="testbed 1, 26 GB in 16 equal blocks, at line rate",
        bound=Exact((0.585,), "s", 0.0005),
        measure=formula,
    ),
    Claim(
        id="lambda-one-second",
        source=f"{PAPER} 1, Fig. 7",
        says="13B is on 8 nodes in less than a second.",
        setting="testbed 1, its 40 layers in 16 blocks, at line rate",
        bound=Band("< 1 s", 0.0, 1.0, "s"),
        measure=whole_model,
    ),
    Claim(
        id="lambda-tree",
        source=f"{PAPER} Fig. 7",
        says="It is 1.82 times as fast as FaaSNet's binary tree.",
        setting="testbed 1, 26 GB to 8 nodes",
        bound=around(1.82, "", 0.05),
        measure=against_tree,
    ),
    Claim(
        id="lambda-k",
        source=f"{PAPER} Fig. 10",
        says="Scaling is fastest with k = 4, then with 2, then with 1.",
        setting="testbed 1, 13B, 8 nodes: when the first pipeline can execute",
        bound=Order("k = 4 < k = 2 < k = 1", "s"),
        measure=first_pipelines,
    ),
    Claim(
        id="lambda-ramp-1",
        source=f"{PAPER} 7.3",
        says="With k = 1 throughput begins to grow at 1.2 s.",
        setting="testbed 1, 13B, 8 nodes, at line rate",
        bound=around(1.2, "s", 0.2),
        measure=lambda bench: one(first_pipeline(1)),
    ),
    Claim(
        id="lambda-ramp-4",
        source=f"{PAPER} 7.3",
        says="With k = 4 throughput begins to grow at 0.25 s.",
        setting="testbed 1, 13B, 8 nodes, at line rate",
        bound=around(0.25, "s", 0.2),
        measure=lambda bench: one(first_pipeline(4)),
    ),
    Claim(
        id="lambda-memory",
        source=f"{PAPER} 7.3",
        says="From local memory it scales 2 to more than 4 times as fast as ServerlessLLM.",
        setting="testbed 1, 13B on 8 nodes: when they can serve together, against when one is whole",
        bound=Band("2 to > 4", 2.0, float("inf")),
        measure=from_memory,
    ),
    Claim(
        id="lambda-cold",
        source=f"{PAPER} 7.3",
        says="A cold start is 3.75 to 11.4 times as fast as from the SSD.",
        setting="testbed 1, from the memory of one node to 7 others, at line rate",
        bound=Band("3.75 to 11.4", 3.75, 11.4),
        measure=cold_start,
    ),
    Claim(
        id="lambda-blocks",
        source=f"{PAPER} Fig. 12",
        says="Of 8 to 48 blocks, 16 are the fastest.",
        setting=f"testbed 1, 26 GB to 8 nodes, {BLOCK_SECONDS * 1e3:g} ms a block besides its bytes",
        bound=Exact((16,), "blocks"),
        measure=best_cut,
        calibrated="What a block costs besides its bytes is not in the paper; it was chosen for this number.",
    ),
    Claim(
        id="lambda-gigabit",
        source=f"{PAPER} 2.3",
        says="Over 1 Gbps, Llama-70B takes more than 18 minutes.",
        setting="140 GB over one hop",
        bound=Band("> 18 minutes", 18.0, 20.0, "minutes"),
        measure=over_a_gigabit,
    ),
    cannot(
        "lambda-nccl",
        f"{PAPER} Fig. 7",
        "It is 1.53 times as fast as NCCL's broadcast.",
        "The policy `ring` is such a broadcast, but the time that its group takes to form is a setting, which decides "
        "the ratio.",
    ),
    cannot(
        "lambda-breakdown",
        f"{PAPER} Fig. 11",
        "Memory that is allocated before, packed tensors and RDMA from host memory each save transfer time.",
        "Arenas and packed checkpoints are always on, and modelled links have no cost that they would save.",
    ),
    cannot(
        "lambda-plateau",
        f"{PAPER} 7.3",
        "From k = 2 on throughput grows in stairs.",
        "The paper takes it for an overhead of its implementation.",
    ),
)
