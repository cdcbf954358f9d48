"""What must hold of routers: what they count, and when they act. Pure, as all rules are."""

from collections.abc import Iterator

from livescale.load.simulate.seeds.evidence import MUTE, begins_anew
from livescale.load.simulate.seeds.history import History
from livescale.load.simulate.seeds.system import SeedSystem

# Faults by which nobody misses that a request has ended.
LOSES_NO_END = ("outage", "delay", "repeat", "noise", "cut-link", "slow-disk")
COUNTED_SECONDS = 1.5  # shorter than a router waits before it gives up what an idle worker does not tell of
# Longer than late messages take, one after the other, to tell where a request went and that it ended.
GONE_SECONDS = 1.0


def hears_all(system: SeedSystem) -> bool:
    """Whether a router hears of every end: of all faults, those at most happened by which it does not miss one."""
    return all(fault.is_command or fault.what in LOSES_NO_END or begins_anew(fault) for fault in system.faults)


def counts_right(system: SeedSystem, history: History) -> Iterator[str]:
    """A router hears soon which requests have ended, also when the bus is back; only lost messages, and processes
    that are away, may have it wait."""
    if hears_all(system) and history.counted_for > COUNTED_SECONDS:
        yield f"a router counted requests for {history.counted_for:.2f} s that had all ended"


def counts_once(system: SeedSystem, history: History) -> Iterator[str]:
    """A router counts a request where it is, and nowhere else: it would keep a place free for nobody."""
    if hears_all(system) and history.twice_for > COUNTED_SECONDS:
        yield f"a router counted a request at two workers for {history.twice_for:.2f} s"


def counts_what_is_there(system: SeedSystem, history: History) -> Iterator[str]:
    """A router soon counts no request any more that a worker took and that no worker has: its place stays empty, also
    while others keep that worker busy."""
    if hears_all(system):
        for (router, request), seconds in history.gone_for.items():
            if seconds > GONE_SECONDS:
                yield f"{router} counted {request} for {seconds:.2f} s, which no worker had any more"


def acts_in_office(system: SeedSystem, history: History) -> Iterator[str]:
    """No router gives out requests once it was declared dead, unless it could not hear so, or late: its successor
    does."""
    if not any(fault.what in (*MUTE, "delay") for fault in system.faults):
        yield from history.usurped
