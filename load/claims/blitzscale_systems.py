"""What BlitzScale says of whole systems, simulated side by side: on a made-up burst, and on the Azure traces."""

from collections.abc import Callable, Iterator, Sequence

from livescale.load.bench.systems.rows import SystemSummary
from livescale.load.bench.systems.settings import LADDER
from livescale.load.claims.claim import Band, Bound, Claim, Figure, Measured, Order, cannot
from livescale.load.claims.workbench import TRACES, Setting, WindowRuns, Workbench
from livescale.load.trace import LoadPhase, RequestShape, arrivals_in

PAPER = "BlitzScale"
CLUSTER_B = Setting(topology="cluster-b", workers=8, profile="llama3-8b-a100", parameters_gb=16.06)
# As BurstGPT has them: a few seconds at several times the rate of before, with short answers.
BURST_SECONDS = 14.0
BURST = arrivals_in(
    [LoadPhase("before", 4.0, 3.0), LoadPhase("burst", 5.0, 22.0), LoadPhase("after", 5.0, 3.0)],
    RequestShape(prompt_tokens=2_000, output_tokens=24),
    seed=1,
)
MADE_UP = "A burst that was made up stands in for BurstGPT, whose rows are not to be had."
OTHERS = ("allcache", "distserve-full", "distserve-half", "ideal")
SYSTEMS = (*LADDER, *OTHERS)
BURST_SYSTEMS = (*LADDER, "allcache")
SLACK = 1.05  # a step may be so much worse and still be no step back; the sentences of these claims say so
STEPS = "Network, multicast and ZigZag each shorten the mean TTFT. Checked: none lengthens it by more than 5 %."
LADDER_ORDER = Order("+zigzag < +multicast < +network < S-LLM", "ms", SLACK)
ONE_COPY, AT_MOST_ONE = "Hosts keep at most one copy of a model.", Band("<= 1", 0.0, 1.0, "copies")
NEGLIGIBLE = "What scaling adds to the network's load is negligible."
MOSTLY_FREE = Band("more than 40 % is free", 0.0, 0.5)

Look = Callable[[SystemSummary], float]


def ttft(one: SystemSummary) -> float:
    return one.ttft_mean * 1e3


def tbt(one: SystemSummary) -> float:
    return one.tbt_mean * 1e3


def used(one: SystemSummary) -> float:
    return one.used_seconds


def copies(one: SystemSummary) -> float:
    """The most copies in the memory of all hosts at a time."""
    return one.cached_bytes / (CLUSTER_B.parameters_gb * 1e9)


def on_burst(bench: Workbench) -> list[WindowRuns]:
    return [bench.play(CLUSTER_B, BURST, BURST_SECONDS, BURST_SYSTEMS)]


def on(trace: str) -> Callable[[Workbench], list[WindowRuns]]:
    return lambda bench: bench.replay(CLUSTER_B, trace, SYSTEMS)


def compared(
    windows: Callable[[Workbench], list[WindowRuns]], look: Look, names: Sequence[str]
) -> Callable[[Workbench], Measured]:
    """A figure of some systems, in each window."""

    def measure(bench: Workbench) -> Measured:
        rows = [tuple(Figure(name, look(window.summary(name))) for name in names) for window in windows(bench)]
        return Measured(rows=tuple(rows))

    return measure


def ratio(
    windows: Callable[[Workbench], list[WindowRuns]], look: Look, name: str, to: str
) -> Callable[[Workbench], Measured]:
    """A figure of one system in parts of another's, in each window."""

    def measure(bench: Workbench) -> Measured:
        found = [(window, window.summary(name), window.summary(to)) for window in windows(bench)]
        rows = [(Figure(window.name, look(one) / look(other)),) for window, one, other in found]
        return Measured(rows=tuple(rows))

    return measure


def violations(one: SystemSummary) -> float:
    assert one.attainment is not None
    return 1 - one.attainment


def network_share(windows: Callable[[Workbench], list[WindowRuns]]) -> Callable[[Workbench], Measured]:
    """What BlitzScale sends over the network, KV included, in parts of what all NICs could."""

    def measure(bench: Workbench) -> Measured:
        rows = []
        for window in windows(bench):
            run = window.runs["+zigzag"][0]
            could = CLUSTER_B.workers * 12.5e9 * run.seconds
            rows.append((Figure(window.name, sum(sent for _, sent in run.network) / could),))
        return Measured(rows=tuple(rows))

    return measure


def of_burst() -> Iterator[Claim]:
    """Yield the claims that are checked with the made-up burst of requests."""

    def claim(id: str, figure: str, says: str, bound: Bound, measure: Callable[[Workbench], Measured]) -> Claim:
        return Claim(
            id=f"blitz-burst-{id}",
            source=f"{PAPER} {figure}",
            says=says,
            setting=f"{CLUSTER_B}, colocated; a burst of 7 times the rate for 5 s",
            bound=bound,
            measure=measure,
            effort="short",
            stand_in=MADE_UP,
        )

    better = Order("BlitzScale < AllCache", "ms")
    yield claim("ladder", "Fig. 20, BurstGPT", STEPS, LADDER_ORDER, compared(on_burst, ttft, LADDER[::-1]))
    faster = "The mean TTFT is 21.1 % below AllCache's."
    yield claim("allcache", "Fig. 17, BurstGPT", faster, better, compared(on_burst, ttft, ("+zigzag", "allcache")))
    yield claim("copies", "Fig. 19, BurstGPT", ONE_COPY, AT_MOST_ONE, compared(on_burst, copies, ("+zigzag",)))
    yield claim("network", "Fig. 22, BurstGPT", NEGLIGIBLE, MOSTLY_FREE, network_share(on_burst))


def of_trace(trace: str) -> Iterator[Claim]:
    """Yield the claims that are checked on windows of one Azure trace."""
    windows = on(trace)

    def claim(id: str, figure: str, says: str, bound: Bound, measure: Callable[[Workbench], Measured]) -> Claim:
        return Claim(
            id=f"blitz-{trace.removeprefix('Azure').lower()}-{id}",
            source=f"{PAPER} {figure}, {trace}",
            says=says,
            setting=f"{CLUSTER_B}, colocated; half of what DistServe with all GPUs can prefill",
            bound=bound,
            measure=measure,
            effort="long",
            traces=(trace,),
        )

    three = ("+zigzag", "allcache", "serverlessllm")
    order = Order("BlitzScale < AllCache < S-LLM", "ms", SLACK)
    yield claim("ladder", "Fig. 20", STEPS, LADDER_ORDER, compared(windows, ttft, LADDER[::-1]))
    for id, name, look in (("ttft", "TTFT", ttft), ("tbt", "TBT", tbt)):
        lowest = f"BlitzScale has the lowest mean {name}. Checked: each system's is at most 5 % above the next one's."
        yield claim(id, "Fig. 17", lowest, order, compared(windows, look, three))
    slo = "BlitzScale violates no SLO more often than DistServe with all GPUs; ServerlessLLM does for 18.7 %."
    ours_first = ("+zigzag", "serverlessllm")
    yield claim("slo", "Fig. 18", slo, Order("BlitzScale < S-LLM", "share"), compared(windows, violations, ours_first))
    half = "The mean TTFT is 95.8 % below that of DistServe with half of the GPUs."
    yield claim("half", "Fig. 18", half, Band("0.042", 0.0, 0.3), ratio(windows, ttft, "+zigzag", "distserve-half"))
    full = "GPU time is half of that of DistServe with all GPUs."
    yield claim("gpu-half", "Fig. 18", full, Band("0.5", 0.4, 0.6), ratio(windows, used, "+zigzag", "distserve-full"))
    less = "GPU time is 19.46 % below ServerlessLLM's."
    yield claim("gpu", "Fig. 18", less, Order("BlitzScale < S-LLM", "GPU s"), compared(windows, used, ours_first))
    yield claim("copies", "Fig. 19", ONE_COPY, AT_MOST_ONE, compared(windows, copies, ("+zigzag",)))
    yield claim("network", "Fig. 22", NEGLIGIBLE, MOSTLY_FREE, network_share(windows))


CLAIMS = (
    *of_burst(),
    *(claim for trace in TRACES for claim in of_trace(trace)),
    cannot(
        "blitz-fig8",
        f"{PAPER} 1, Fig. 8",
        "From a prefill instance a scale takes 1.5 times as long, and tail TBT grows by half.",
        "No plan takes parameters from an instance whose NIC sends KV while there is another source, and the paper "
        "does not say how much KV there was.",
    ),
    cannot(
        "blitz-fig3-rates",
        f"{PAPER} Fig. 3",
        "Below 60 % of violations takes 220 Gbps a GPU for 72B.",
        "It is of BurstGPT, whose rows are not to be had, and of a simulator with delays that were set by hand. That "
        "violations grow with the stop is checked.",
    ),
    cannot(
        "blitz-fig4",
        f"{PAPER} Fig. 4",
        "With five minutes of time to live, 20 to 46 % of loads miss the host cache.",
        "It is of BurstGPT and of a cluster with many models, of which the paper tells neither rows nor sizes.",
    ),
    cannot(
        "blitz-fig17-72b",
        f"{PAPER} Fig. 17, BurstGPT",
        "With 72B on cluster A, TTFT is 75.5 % and 21.1 % below that of ServerlessLLM and AllCache.",
        "The systems are compared with one GPU for an instance; the percentages are of BurstGPT.",
    ),
    cannot(
        "blitz-fig23",
        f"{PAPER} Fig. 23",
        "With its optimizations, what the control plane adds to a scale is negligible.",
        "Starts of processes and CUDA contexts are not simulated. `livescale bench scale` measures the real ones.",
    ),
    cannot(
        "blitz-fig24",
        f"{PAPER} Fig. 24",
        "The p99 of TTFT is 0.24 times that of vLLM for the average, and below that of vLLM with all GPUs.",
        "It is of BurstGPT. The same comparison is made on the Azure traces, with DistServe.",
    ),
)
