"""A line with priorities in which nobody waits for ever."""

# What a priority of one less is worth: more than an instance has at once by default, so of these the lower always goes
# first.
PRIORITY_ARRIVALS = 256


def queue_position(arrival: int, priority: int) -> int:
    """That of its arrival, counted from whoever came first, or of one that much earlier or later by its priority. So
    whoever is here is overtaken by so many at most, and becomes the first."""
    return arrival + PRIORITY_ARRIVALS * priority
