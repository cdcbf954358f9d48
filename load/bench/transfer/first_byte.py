"""What a plan's first chunk waits for: the handshake of its channel, at first contact of two processes and later."""

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.transfer.fleet import BenchFleet, chain_jobs, started
from livescale.load.bench.transfer.node_messages import Done, Meet
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.transfer.chunks import MAX_CHUNK_BYTES

BENCH = "transfer"
LATER = 10  # plans after the first contact, in each pass
BAR = 0.5  # of the first contact's handshake; a new endpoint takes a third of it even later
SIZES = (MAX_CHUNK_BYTES,)


class FirstByte(NamedTuple):
    """Seconds from the receiver's order until its channel was open, and until the first chunk was here."""

    handshake: float
    chunk: float


def first_byte(printer: RecordPrinter, settings: LinkSettings, passes: int) -> Iterator[Record]:
    """Plans of one chunk between two processes; a pass begins with processes that have never met."""
    contacts, greeted, later = list[FirstByte](), list[FirstByte](), list[FirstByte]()
    with started(2, settings, SIZES) as fleet:
        for number in range(passes):
            printer.progress(f"first byte: pass {number + 1} of {passes}")
            for firsts, greets in ((contacts, False), (greeted, True)):
                if number or greets:
                    fleet.renew()
                first, *others = printer.samples.take(partial(plans, fleet, greets=greets), fleet.renew)
                firsts.append(first)
                later += others
    yield from rows(contacts, greeted, later, has_bars=settings.transport == "ucx")


def plans(fleet: BenchFleet, *, greets: bool) -> list[FirstByte]:
    """One plan after the other between two processes that have never met, or have greeted each other as workers do that
    join."""
    if greets:
        first, second = fleet.nodes
        fleet.run({0: Meet(second, ends=False)})
        fleet.run({1: Meet(first, ends=True)})
    done = [fleet.run(chain_jobs(fleet, 1, MAX_CHUNK_BYTES))[1] for _ in range(1 + LATER)]
    return [waits(one) for one in done]


def waits(receiver: Done) -> FirstByte:
    return FirstByte(receiver.connected - receiver.began, receiver.first_byte - receiver.began)


def rows(
    contacts: Sequence[FirstByte], greeted: Sequence[FirstByte], later: Sequence[FirstByte], *, has_bars: bool
) -> Iterator[Record]:
    """The handshake beside the whole time to the first chunk, and beside that of a first contact without a greeting."""
    handshakes = []
    for case, found in (("first contact", contacts), ("first plan after a greeting", greeted), ("later plans", later)):
        handshake, chunk = (median(times) * 1e3 for times in zip(*found, strict=True))
        handshakes.append(handshake)
        yield measured(BENCH, f"handshake, {case}, of the time to the first chunk", handshake, "ms", chunk)
    most = BAR if has_bars else None
    contact, after_greeting, of_later = handshakes
    case = "handshake, first plan after a greeting to first contact"
    yield measured(BENCH, case, after_greeting, "ms", contact, at_most=most)
    yield measured(BENCH, "handshake, later plans to first contact", of_later, "ms", contact, at_most=most)
