"""A worker's process before it is one."""

import pytest

from services.worker import main as worker_main
from services.worker.settings import WorkerSettings


def test_a_device_that_is_not_there_ends_it_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_main, "count_gpus", lambda: 1)
    with pytest.raises(SystemExit, match=r"^Error: device: cuda:3 was asked for and CUDA shows .* cuda:0 to cuda:0;"):
        worker_main.main(WorkerSettings(device="cuda:3"))
