"""What the paper on operator-level autoscaling says. Instances are scaled here, and operators are not."""

from livescale.load.claims.claim import cannot

PAPER = "Operator-level autoscaling"
WHOLE = "Instances are the unit of scaling here, so there are no operators to place."
UNTOLD = "The paper tells neither its SLOs nor the capacity of its devices, on which the number depends."

CLAIMS = (
    cannot("operators-gpus", f"{PAPER} Fig. 10, 11", "It saves up to 40 % of the GPUs.", f"{WHOLE} {UNTOLD}"),
    cannot(
        "operators-energy",
        f"{PAPER} Fig. 10, 11",
        "It saves up to 35 % of the energy.",
        f"{WHOLE} The coefficients of its power model are not told.",
    ),
    cannot(
        "operators-memory",
        f"{PAPER} Fig. 10, 11",
        "It saves more than 60 % of the memory at 32,000 tokens, and more than 50 % at 100 queries a second.",
        WHOLE,
    ),
    cannot(
        "operators-prefill",
        f"{PAPER} Fig. 12",
        "Prefill gains two to three times what decode does.",
        f"{WHOLE} {UNTOLD}",
    ),
    cannot(
        "operators-oracle",
        f"{PAPER} 5",
        "The greedy search is 8 % from the best configuration.",
        f"{WHOLE} {UNTOLD}",
    ),
    cannot(
        "operators-sizes",
        f"{PAPER} Fig. 13",
        "Larger models gain more: less than 15 % with 0.5B, near 50 % with 72B.",
        f"{WHOLE} {UNTOLD}",
    ),
    cannot(
        "operators-throughput",
        f"{PAPER} 1",
        "With the same GPUs throughput is 1.6 times as high.",
        f"{WHOLE} {UNTOLD}",
    ),
)
