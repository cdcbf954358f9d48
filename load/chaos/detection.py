"""How soon the registry found the deaths that a run with faults made: pure, from the faults and the leases' ends."""

from collections.abc import Sequence
from statistics import median

from livescale.load.chaos.faults import SeenFault
from livescale.load.stats import duration
from livescale.shared.messages.membership import LeaseChanged

# A death that comes later has another cause.
FOUND_WITHIN_SECONDS = 10.0


def seconds_to_find(fault: SeenFault, deaths: Sequence[LeaseChanged]) -> float | None:
    """Seconds from a kill or a freeze until the registry held its victim for dead.

    None where it never did: a short freeze is no death, and a registry does not judge itself.
    """
    if not fault.struck or fault.fault.kind not in ("kill", "freeze"):
        return None
    after = [death.at - fault.at for death in deaths if death.id == fault.victim]
    return min((seconds for seconds in after if 0 <= seconds <= FOUND_WITHIN_SECONDS), default=None)


def all_seconds(kind: str, faults: Sequence[SeenFault], deaths: Sequence[LeaseChanged]) -> list[float]:
    """`seconds_to_find` of all faults of a kind that were found."""
    found = [seconds_to_find(fault, deaths) for fault in faults if fault.fault.kind == kind]
    return [round(seconds, 3) for seconds in found if seconds is not None]


def detection_sentence(kills: Sequence[float], freezes: Sequence[float]) -> str:
    """Both in one sentence for people, or nothing where nothing was found dead."""
    told = [
        f"{what} after {duration(median(seconds))} (median of {len(seconds)}, longest {duration(max(seconds))})"
        for what, seconds in (("kills", kills), ("silent processes", freezes))
        if seconds
    ]
    return f" The registry found {' and '.join(told)}." if told else ""
