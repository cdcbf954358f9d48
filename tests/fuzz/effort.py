"""How long to look: a little in the suite, FUZZ times as long under `make fuzz`."""

import os

from hypothesis import HealthCheck, Phase, settings

FACTOR = int(os.environ.get("FUZZ", "1"))
IN_SUITE = 0.6  # of the examples that `make fuzz FUZZ=1` tries, as the suite has to end within minutes on any CPU


def examples(count: int, *, shrinks: bool = False) -> settings:
    """Fresh examples every time under `make fuzz`, the same ones in the suite. One that fails is made shorter only
    where that is a matter of seconds."""
    return settings(
        max_examples=count * FACTOR if "FUZZ" in os.environ else max(1, round(count * IN_SUITE)),
        derandomize=FACTOR == 1,
        database=None,
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if shrinks else [])],
        print_blob=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
