"""What hand-offs move is in the heartbeats of both ends, and parameters are not."""

from livescale.shared.messages.membership import PeerTraffic
from tests.worker.live.live_workers import TARGET, LiveWorkers, live_workers
from tests.worker.requests import random_prompt, submit


def between(live: LiveWorkers, worker: str) -> PeerTraffic | None:
    """Return the traffic that a worker reports, with one peer at most."""
    traffic = live.fleet.reports[worker].traffic
    assert traffic is not None
    assert len(traffic) <= 1
    return traffic[0] if traffic else None


async def test_activations_and_kv_are_measured_at_both_ends_and_parameters_are_not() -> None:
    async with live_workers() as live:
        await live.give_layers(2)
        assert (between(live, "s"), between(live, TARGET)) == (None, None)
        await live.fleet.admit(TARGET, submit("a", random_prompt(1, 150), max_tokens=24))
        await live.ran(2)
        await live.help("s")
        moved: dict[str, PeerTraffic] = {}

        def both_have_said_so() -> bool:
            moved.update({id: said for id in ("s", TARGET) if (said := between(live, id)) is not None})
            return len(moved) == 2

        await live.fleet.until(both_have_said_so)
        assert moved["s"].peer == live.fleet.node(TARGET).address
        assert moved[TARGET].peer == live.fleet.node("s").address
        assert moved["s"].received > 0 == moved["s"].sent
        assert moved[TARGET].sent > 0 == moved[TARGET].received
