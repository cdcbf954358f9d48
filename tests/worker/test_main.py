"""A worker's process before it is one."""

import pytest

from livescale.services.worker import main as worker_main
from livescale.services.worker.engine.kernels import variants
from livescale.services.worker.settings import WorkerSettings


def test_a_device_that_is_not_there_ends_it_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_main, "count_gpus", lambda: 1)
    with pytest.raises(SystemExit, match=r"^Error: device: cuda:3 was asked for and CUDA shows .* cuda:0 to cuda:0;"):
        worker_main.main(WorkerSettings(device="cuda:3"))


def test_a_latency_that_is_not_there_ends_it_with_a_sentence() -> None:
    with pytest.raises(SystemExit, match=r"^Error: engine-profile: there is no 'llama9'; give a file"):
        worker_main.main(WorkerSettings(engine="modelled", engine_profile="llama9"))


def test_kernels_that_are_not_there_end_it_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "find_compiled", lambda: None)
    with pytest.raises(SystemExit, match=r"^Error: kernels: compiled cannot be used here: .*\. Choose --kernels auto"):
        worker_main.main(WorkerSettings(device="cpu", kernels="compiled"))
