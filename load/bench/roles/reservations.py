"""What a bench hears of the reservations that workers ask of each other for KV."""

from collections.abc import Callable
from dataclasses import dataclass, field

from livescale.load.bench.roles.rows import Transfer
from livescale.load.bench.samples import BenchFailed
from livescale.shared.bus.contract import Bus, Topic
from livescale.shared.messages.disaggregation import Reserve, TakeOver
from livescale.shared.subjects import RESERVE, TAKE_OVER

# What workers ask each other can be heard on the bus by others, too.
RESERVING: Topic[Reserve] = Topic(RESERVE.pattern, Reserve)
TAKING_OVER: Topic[TakeOver] = Topic(TAKE_OVER.pattern, TakeOver)


@dataclass
class HeardReservations:
    """What was heard of reservations: when each was asked for, and which of them came to something."""

    asked: list[tuple[float, str, Transfer]] = field(default_factory=list)
    taken: set[Transfer] = field(default_factory=set)

    def first_after(self, ordered: float, worker: str) -> float:
        """Seconds from an order until this worker was asked for its first reservation that it did not refuse.

        Raises BenchFailed where there is none.
        """
        times = [at for at, asked, transfer in self.asked if asked == worker and transfer in self.taken]
        later = [at - ordered for at in times if at >= ordered]
        if not later:
            raise BenchFailed(f"{worker} took over no request after its role had changed")
        return min(later)

    def clear(self) -> None:
        self.asked.clear()
        self.taken.clear()


async def hear_reserving(bus: Bus, now: Callable[[], float], heard: HeardReservations) -> None:
    """Note when each reservation is asked for, and of which worker."""
    async for received in await bus.subscribe(RESERVING):
        asked = received.message
        heard.asked.append((now(), received.holes["id"], (asked.prefill.id, asked.ticket)))


async def hear_taking_over(bus: Bus, heard: HeardReservations) -> None:
    """Note which reservations were not refused: their KV was sent."""
    async for received in await bus.subscribe(TAKING_OVER):
        heard.taken.add((received.message.prefill, received.message.ticket))
