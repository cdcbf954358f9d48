"""Random systems with several gateways, of which one may end."""

from random import Random

from livescale.load.simulate.seeds.history import SeedFault, SeedFaultKind

SHARE = 0.1  # of all seeds


def count_gateways(seed: int) -> int:
    """How many gateways the system of a seed has."""
    chance = Random(f"gateways {seed}")
    return chance.choice((2, 2, 3)) if chance.random() < SHARE else 1


def random_ends(seed: int, gateways: int, latest: float) -> list[SeedFault]:
    """In two of three systems with several gateways, the end of one for a while: its clients can ask the others."""
    chance = Random(f"ends of gateways {seed}")
    what: SeedFaultKind | None = chance.choice(("kill", "stop", None))
    if gateways == 1 or what is None:
        return []
    who = f"gateway-{chance.randrange(gateways)}"
    return [SeedFault(chance.uniform(0.0, latest), what, who, chance.uniform(0.2, 5.0))]
