"""Clients of a simulation see what those of a gateway see: tokens with their times, and refusals."""

import asyncio

import pytest

from livescale.load.records import Ask, find_fault
from livescale.load.simulate.client import fetch, replay
from livescale.load.simulate.cluster import virtual_cluster
from livescale.load.simulate.start import quiet
from livescale.shared.simulation import virtual_time
from tests.load.simulate.clusters import registered, settings


def test_requests_are_sent_when_they_are_due_and_told_token_by_token() -> None:
    async def main() -> None:
        async with virtual_cluster(settings(1)) as made:
            await registered(made)
            begun = made.clock.wall()
            asks = [Ask(0, 0.5, [1] * 100, 5), Ask(1, 0.0, [2] * 40, 3)]
            first, second = await replay(made.gateway, "m", asks)
            assert [first.due, second.due] == pytest.approx([begun + 0.5, begun])
            for record, ask in ((first, asks[0]), (second, asks[1])):
                assert find_fault(record) is None
                assert (record.index, record.prompt_tokens, record.status) == (ask.index, len(ask.prompt), 200)
                assert record.token_at == sorted(record.token_at)
                assert record.ttft is not None
                assert 0.005 < record.ttft < 0.1
                assert all(0.01 < gap < 0.02 for gap in record.gaps)

    with quiet():
        virtual_time.run(main(), limit_seconds=120)


def test_what_is_refused_is_in_the_record() -> None:
    async def main() -> None:
        async with virtual_cluster(settings(1)) as made:
            await registered(made)
            nobody = await fetch(made.gateway, "nobody", Ask(0, 0.0, [1], 1))
            assert nobody.status == 404
            assert find_fault(nobody)
            late = asyncio.create_task(fetch(made.gateway, "m", Ask(1, 0.0, [1] * 1000, 500), seconds=1.0))
            record = await late
            assert record.status == 504
            assert 0 < len(record.token_ids) < 500
            assert record.ended == pytest.approx(record.sent + 1.0, abs=0.05)

    with quiet():
        virtual_time.run(main(), limit_seconds=120)
