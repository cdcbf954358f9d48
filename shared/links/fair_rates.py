"""The rates of flows that share links: max-min fair shares by progressive filling. Pure."""

import heapq
from collections.abc import Sequence


def fair_rates(used_by: Sequence[Sequence[int]], capacity: Sequence[float], caps: Sequence[float]) -> list[float]:
    """Return the fair rate of each flow, in bytes a second.

    All rates rise alike until a link is full or a flow reaches its cap. The flows concerned stop there, and the others
    go on. `used_by` has the links of each flow, `capacity` the rate of each link.
    """
    rates = list(caps)
    flowing: list[set[int]] = [set() for _ in capacity]
    for flow, links in enumerate(used_by):
        for link in links if caps[flow] > 0 else ():
            flowing[link].add(flow)
    left = list(capacity)
    # A level at which something happens: a link is full, or (negative) flow -n-1 has reached its cap.
    levels = [(capacity[link] / len(flows), link) for link, flows in enumerate(flowing) if flows]
    levels += [(cap, -flow - 1) for flow, cap in enumerate(caps) if cap < float("inf")]
    heapq.heapify(levels)
    stopped = [cap <= 0 for cap in caps]
    while levels:
        level, what = heapq.heappop(levels)
        if what >= 0 and flowing[what] and left[what] / len(flowing[what]) > level * (1 + 1e-12):
            # Some of its flows were stopped elsewhere meanwhile: the link is full at a higher level.
            heapq.heappush(levels, (left[what] / len(flowing[what]), what))
            continue
        for flow in sorted(flowing[what]) if what >= 0 else [-what - 1]:
            if not stopped[flow]:
                stopped[flow] = True
                rates[flow] = level
                for link in used_by[flow]:
                    flowing[link].discard(flow)
                    left[link] -= level
    return rates
