"""First tokens with an adapter that a worker has to fetch: the row with its bar, and a tiny system that is asked."""

from pathlib import Path

import pytest

from livescale.load.bench.models.adapter_fetches import RATE, FetchTimes, fetch_rows, measure_fetches
from livescale.load.bench.system import Launcher
from tests.checkpoints import tiny_checkpoint

RANK = 32  # of the tiny model so that there is no room for two


@pytest.mark.parametrize(("later", "kept"), [(0.169, True), (0.171, False)])
def test_the_bar_is_a_share_of_the_bytes_at_the_rate_and_a_constant(later: float, kept: bool) -> None:
    times = FetchTimes(int(0.1 * RATE), absent=[0.02, 0.01 + later, 9.0], resident=[0.0, 0.01, 9.0])
    resident, fetched = fetch_rows("adapters", times)
    assert (resident.value, resident.ok) == (pytest.approx(10.0), None)
    assert (fetched.value, fetched.against, fetched.bar) == pytest.approx((1e3 * later, 100.0, 1.7))
    assert fetched.ok is kept


@pytest.mark.system
async def test_every_other_request_of_a_system_fetches_its_adapter(tmp_path: Path) -> None:
    lines: list[str] = []
    launcher = Launcher(lambda text: None, lambda name, line: lines.append(line))
    times = await measure_fetches(launcher, Path(tiny_checkpoint("qwen2")), 2, RANK)
    assert len(times.absent) == len(times.resident) == 4
    # The first ones waited for the bytes, which came at the link's rate.
    assert min(times.absent) > times.size_bytes / RATE
    # Each is fetched once before the rounds, then once in each of three rounds: all but the first one evict.
    assert sum("adapter_evicted" in line for line in lines) == 7
