"""The times of an engine's tokens are noted by request."""

from livescale.load.bench.requests.held_alone import TokenTimes
from livescale.services.worker.scheduling.batch import Batch, ScheduledChunk, TokenSampling
from livescale.shared.messages.requests import Sampling


async def test_gaps_are_those_between_steps_that_gave_the_request_a_token() -> None:
    times = TokenTimes()

    def step(*chosen: bool) -> Batch:
        sampling = TokenSampling(Sampling(), 0)
        chunks = (
            ScheduledChunk("7-1", (1,), 0, range(1), True, sampling if is_chosen else None) for is_chosen in chosen
        )
        return Batch(1, tuple(chunks))

    class Engine:
        async def ask(self, request: object) -> None:
            for is_chosen in (False, True, True, True):
                times.take(step(is_chosen))

    assert len(await times.gaps(Engine(), 7)) == 2  # type: ignore[arg-type]
