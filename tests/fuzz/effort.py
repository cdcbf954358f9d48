"""How long to look: a little in the suite, FUZZ times as long under `make fuzz`."""

import os

from hypothesis import HealthCheck, Phase, settings

FACTOR = int(os.environ.get("FUZZ", "1"))


def examples(count: int) -> settings:
    """Fresh examples every time under `make fuzz`, the same ones in the suite."""
    return settings(
        max_examples=count * FACTOR,
        derandomize=FACTOR == 1,
        database=None,
        phases=[Phase.generate],  # of systems: to shrink an example takes minutes
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
