"""Models that fit no worker are refused where they are registered."""

import pytest

from livescale.services.registry.pool import Pool
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import WorkerReport
from tests.registry.reports import CHECKED, SIZE, host, spec


def test_a_model_that_no_worker_can_hold_is_refused_with_the_number_to_set() -> None:
    pool = Pool()
    pool.on_host(host("h-0"))
    for index, size in enumerate((SIZE // 4, SIZE // 2)):
        pool.on_worker(WorkerReport(id=f"w-{index}", epoch=1, state="spare", arena_bytes=size))
    with pytest.raises(Refusal, match=f"start workers with --arena-bytes {SIZE} or more") as refused:
        pool.register(spec("m"), CHECKED, 1, 0.0)
    assert refused.value.code == 409
    pool.register(spec("m", tensor_parallel_size=2), CHECKED, 1, 0.0)
    pool.on_worker(WorkerReport(id="w-2", epoch=1, state="spare", arena_bytes=SIZE))
    pool.register(spec("n"), CHECKED, 1, 0.0)
