"""Tests that need a GPU, and what they share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU: torch shows no CUDA device")


@pytest.fixture
def gpus() -> tuple[str, str]:
    """Two GPUs, or one twice: for processes there is no difference."""
    return "cuda:0", f"cuda:{torch.cuda.device_count() - 1}"
