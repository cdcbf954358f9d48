"""Which device a worker takes, and what it says where that is not there."""

import subprocess
import sys
from pathlib import Path

import pytest

from livescale.shared.memory import devices
from livescale.shared.memory.devices import NoDevice, choose_device, count_gpus


@pytest.mark.parametrize(
    ("asked", "gpus", "chosen"),
    [
        ("auto", 0, "cpu"),
        ("auto", 2, "cuda:0"),
        ("cpu", 0, "cpu"),
        ("cpu", 2, "cpu"),
        ("cuda", 1, "cuda:0"),
        ("cuda:0", 1, "cuda:0"),
        ("cuda:7", 8, "cuda:7"),
    ],
)
def test_a_device_that_is_there_is_taken(asked: str, gpus: int, chosen: str) -> None:
    assert choose_device(asked, gpus) == chosen


@pytest.mark.parametrize(
    ("asked", "gpus", "shown"), [("cuda", 0, "no GPU"), ("cuda:1", 1, "cuda:0 to cuda:0"), ("cuda:8", 8, "to cuda:7")]
)
def test_a_device_that_is_not_there_is_refused_with_what_is_and_what_to_do(asked: str, gpus: int, shown: str) -> None:
    with pytest.raises(NoDevice, match=shown) as refusal:
        choose_device(asked, gpus)
    assert "--device cpu" in str(refusal.value)


def test_where_there_is_no_driver_nobody_waits_for_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "CUDA_DEVICE", tmp_path / "nvidiactl")
    assert count_gpus() == 0
    code = "import sys, livescale.shared.memory.devices, livescale.shared.links.open; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
