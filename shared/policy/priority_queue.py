"""The order of a priority queue in which no entry waits for ever."""

# What a priority of one less is worth: more than an instance has at once by default, so of these the lower always goes
# first.
PRIORITY_ARRIVALS = 256


def queue_position(arrival: int, priority: int) -> int:
    """Where a request stands in the queue: the lowest position goes first.

    It is the number of its arrival, shifted by its priority as if it had come so much earlier or later. So only a
    limited number of later requests can overtake it, and it becomes the first in the end.
    """
    return arrival + PRIORITY_ARRIVALS * priority
