"""Requests that are prefilled at one worker and decoded at another have the tokens that one alone would make."""

import pytest

from tests.worker.disaggregation.pairs import ask, counted, taken, with_pair
from tests.worker.live.engines import BFLOAT16, FLOAT32, MODELLED, EngineKind
from tests.worker.live.pool import WorkerPool


@pytest.mark.parametrize("kind", [MODELLED, FLOAT32, BFLOAT16], ids=["modelled", "float32", "bfloat16"])
def test_requests_are_decoded_where_they_were_not_prefilled_and_have_the_same_tokens(kind: EngineKind) -> None:
    async def act(pool: WorkerPool) -> None:
        await ask(pool, 3)
        await pool.until(lambda: taken(pool) == 3)
        await pool.until(lambda: len(pool.client.moves) == 3)
        assert pool.client.places == dict.fromkeys(("r0", "r1", "r2"), "d")
        assert all(1 <= len(wish.tokens) < 12 for wish in pool.client.wishes)
        await pool.until(lambda: all(wish.is_over for wish in pool.client.wishes))
        assert counted(pool, "p", "transfer_bytes_total") > 0
        assert [move.previous for move in pool.client.moves] == ["p"] * 3

    with_pair(act, kind=kind)
