"""What LambdaScale says of whole systems, simulated side by side on requests that come at once."""

from collections.abc import Callable

from livescale.load.claims.claim import Claim, Figure, Measured, Order, around, cannot, one
from livescale.load.claims.workbench import Setting, Workbench
from livescale.load.trace import Arrival

PAPER = "LambdaScale"
TESTBED = Setting(topology="lambdascale-1", workers=8, profile="llama2-7b-h800", parameters_gb=13.5)
REQUESTS, AT, SECONDS = 50, 1.0, 8.0
AT_ONCE = tuple(Arrival(AT, 2_000, 32) for _ in range(REQUESTS))
SYSTEMS = ("lambdascale", "faasnet", "serverlessllm")
SAYS = {"faasnet": ("FaaSNet", 2.0), "serverlessllm": ("ServerlessLLM", 8.0)}
SHARE = 0.3  # the paper's ratios depend on lengths that it does not tell
SETTING = f"{TESTBED}; {REQUESTS} prompts of 2,000 tokens at once, one instance at first"


def longest(bench: Workbench) -> dict[str, float]:
    """Seconds until the last of the requests has its first token."""
    window = bench.play(TESTBED, AT_ONCE, SECONDS, SYSTEMS)
    return {name: max(one.ttft for one in runs[0].requests) for name, runs in window.runs.items()}


def in_order(bench: Workbench) -> Measured:
    found = longest(bench)
    return Measured(rows=(tuple(Figure(name, found[name]) for name in SYSTEMS),))


def against(other: str) -> Callable[[Workbench], Measured]:
    def measure(bench: Workbench) -> Measured:
        found = longest(bench)
        return one(found[other] / found["lambdascale"])

    return measure


CLAIMS = (
    Claim(
        id="lambda-50-order",
        source=f"{PAPER} 7.4",
        says="LambdaScale starts 50 requests before FaaSNet, and that before ServerlessLLM.",
        setting=SETTING,
        bound=Order("LambdaScale < FaaSNet < S-LLM", "s"),
        measure=in_order,
        effort="short",
    ),
    *(
        Claim(
            id=f"lambda-50-{other}",
            source=f"{PAPER} 7.4",
            says=f"It starts them {times:g} times as fast as {name}.",
            setting=SETTING,
            bound=around(times, "", SHARE),
            measure=against(other),
            effort="short",
        )
        for other, (name, times) in SAYS.items()
    ),
    Claim(
        id="lambda-50-start",
        source=f"{PAPER} 7.4",
        says="It starts all 50 in 1.1 s.",
        setting=SETTING,
        bound=around(1.1, "s", SHARE),
        measure=lambda bench: one(longest(bench)["lambdascale"]),
        effort="short",
    ),
    cannot(
        "lambda-50-nccl",
        f"{PAPER} 7.4",
        "It starts them 1.4 times as fast as NCCL.",
        "The policy `ring` is such a broadcast, but the time that its group takes to form is a setting, which decides "
        "the ratio.",
    ),
    cannot(
        "lambda-trace-gpu",
        f"{PAPER} 7.5",
        "On BurstGPT it takes 17.8, 18.1 and 31.3 % less GPU time than FaaSNet, NCCL and ServerlessLLM.",
        "The rows of BurstGPT are not to be had.",
    ),
    cannot(
        "lambda-trace-ideal",
        f"{PAPER} 7.5",
        "Its GPU time is 4.3 to 18.6 % above that of ideal scaling.",
        "The rows of BurstGPT are not to be had.",
    ),
    cannot(
        "lambda-trace-tail",
        f"{PAPER} 1",
        "It shortens the 90th percentile of TTFT 2.4 to 5 times.",
        "The rows of BurstGPT are not to be had.",
    ),
    cannot(
        "lambda-70b",
        f"{PAPER} 7.3",
        "On testbed 2, models of 70B scale the same way.",
        "The systems are compared with one GPU for an instance.",
    ),
)
