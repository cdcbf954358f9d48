"""What DeepServe says of scaling and of roles."""

from livescale.load.claims.claim import Band, Claim, Exact, Measured, cannot, several
from livescale.load.claims.plans import cluster, equal_blocks, gpus, hosts_as_a, planned
from livescale.load.claims.workbench import Workbench

PAPER = "DeepServe"
LLAMA_8B = equal_blocks(16, 32)
COUNTS = (1, 2, 4, 8, 16, 32)
RANKS = ((8, 1), (34, 4), (70, 8))  # billions of parameters, and over how many GPUs


def forked(bench: Workbench) -> Measured:
    """Seconds to so many instances in one scale-up domain, in parts of the time to one."""
    pod = hosts_as_a(5, joined=True)
    takers = [gpu.id for gpu in pod.gpus][1:]
    times = [planned(pod, LLAMA_8B, ["a0/0"], takers[:count]).seconds for count in COUNTS]
    return several(*((f"{count}", each / times[0]) for count, each in zip(COUNTS, times, strict=True)))


def sixty_four(bench: Workbench) -> Measured:
    hosts = hosts_as_a(9)
    takers = [gpu for number in range(1, 9) for gpu in gpus(f"a{number}")]
    return several(("64 instances", planned(hosts, LLAMA_8B, ["a0/0"], takers).seconds))


def from_memory(bench: Workbench) -> Measured:
    """Bytes over seconds of a rank that is read from its host's memory, in parts of the link's rate."""
    found = []
    for billions, ranks in RANKS:
        gigabytes = 2 * billions / ranks
        made = planned(cluster("cluster-a"), equal_blocks(gigabytes, 32), ["a0"], ["a0/0"], "local")
        rate = gigabytes * 1e9 / made.seconds
        found.append((f"{billions}B TP{ranks}", rate / cluster("cluster-a").hosts[0].gpus[0].host_link))
    return several(*found)


CLAIMS = (
    Claim(
        id="deepserve-fork",
        source=f"{PAPER} Fig. 11 (a)",
        says="To fork 32 instances takes hardly longer than to fork one.",
        setting="one scale-up domain with NVLink's rate, 8B from one GPU",
        bound=Band("nearly flat", 0.9, 1.1),
        measure=forked,
    ),
    Claim(
        id="deepserve-64",
        source=f"{PAPER} 1, 2",
        says="64 instances are added within seconds.",
        setting="nine hosts as of cluster A, 8B from one GPU, at line rate",
        bound=Band("seconds", 0.0, 10.0, "s"),
        measure=sixty_four,
    ),
    Claim(
        id="deepserve-dram",
        source=f"{PAPER} Fig. 10",
        says="From host memory a load takes in theory what its bytes take over PCIe.",
        setting="cluster A, a rank that alone uses its link",
        bound=Exact((1.0, 1.0, 1.0), "", 0.01),
        measure=from_memory,
    ),
    cannot(
        "deepserve-dram-hit",
        f"{PAPER} Fig. 10",
        "It takes 0.3 s more in practice.",
        "That is what PyTorch takes to make tensors; nothing is made here, blocks are laid out in an arena.",
    ),
    cannot(
        "deepserve-pre-load",
        f"{PAPER} Fig. 9",
        "The start of processes takes most of a scale-out; late imports and parallel steps shorten it by 35 %.",
        "Starts of processes are not simulated, and workers run before a model is theirs.",
    ),
    cannot(
        "deepserve-contention",
        f"{PAPER} Fig. 11 (b), (c)",
        "Prefill and decode of the source hardly slow a fork down.",
        "Modelled engines and links share nothing, so it would hold by construction.",
    ),
    cannot(
        "deepserve-predictor",
        f"{PAPER} 5.3",
        "The length of answers is predicted with 84.9 % accuracy.",
        "It needs the text of requests, which no trace has.",
    ),
    cannot(
        "deepserve-heatmap",
        f"{PAPER} 5.3",
        "Disaggregation wins for long prompts with short answers; 80 % of the cells keep their sign over all rates.",
        "It compares two groups of one model. Here a model's instances are split or not as a whole.",
    ),
    cannot(
        "deepserve-pd-aware",
        f"{PAPER} Fig. 7",
        "Scheduling that knows of both is better than round robin near 10 requests a second, and not below.",
        "It needs colocated and split instances of one model side by side, and the length predictor.",
    ),
    cannot(
        "deepserve-versions",
        f"{PAPER} Fig. 3",
        "Asynchronous scheduling more than doubles what FlowServe decodes.",
        "It is of an engine on Ascend.",
    ),
    cannot(
        "deepserve-recovery",
        f"{PAPER} 7",
        "What fails is back within 5 minutes.",
        "The time is that of a reboot. How long this system takes is what `livescale chaos` measures.",
    ),
)
