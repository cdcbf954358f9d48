"""Workers that hold a model between them serve it."""

import pytest

from tests.worker.live.kinds import BFLOAT16, BLOCKS, FLOAT32, MODELLED, Kind
from tests.worker.live.stage import Stage
from tests.worker.pipeline.line import PAIR, Cut, ask, play, whole

CUTS: tuple[Cut, ...] = (
    PAIR,
    (("a", 1), ("b", 4), ("c", BLOCKS)),
    (("a", 2), ("b", 3), ("a", 4), ("b", BLOCKS)),
    (("a", 2), ("b", 4), ("a", BLOCKS)),
)


async def served(made: Stage, workers: set[str]) -> None:
    await ask(made, 6)
    await made.until(lambda: all(wish.is_over for wish in made.client.wishes))
    await whole(made, *sorted(workers))
    for worker in sorted(workers):
        await made.serve(worker)


@pytest.mark.parametrize(
    ("kind", "cut"),
    [*((MODELLED, cut) for cut in CUTS), (FLOAT32, CUTS[2]), (BFLOAT16, CUTS[1])],
)
def test_a_pipeline_makes_the_tokens_of_one_instance(cut: Cut, kind: Kind) -> None:
    workers = {worker for worker, _ in cut}

    async def act(made: Stage) -> None:
        await served(made, workers)
        assert made.count("a", "pipeline_steps") >= 8
        assert all(made.count(worker, "pipeline_bytes") > 0 for worker in workers - {"a"})

    play(act, cut, kind=kind)
