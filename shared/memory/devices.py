"""What a process computes on and keeps parameters in: a CPU and the host's memory, or a GPU and its own."""

from pathlib import Path

CUDA_DEVICE = Path("/dev/nvidiactl")
CPU = "cpu"


class NoDevice(Exception):
    """The device that was asked for is not there; says what is."""


def count_gpus() -> int:
    """The GPUs that CUDA shows this process; none where torch was built without it."""
    if not CUDA_DEVICE.exists():
        return 0
    import torch  # slow to import, and of no use where there is no GPU

    return torch.cuda.device_count()


def choose_device(asked: str, gpus: int) -> str:
    """`cpu` or `cuda:N` for `auto`, `cpu`, `cuda` or `cuda:N`. Raises NoDevice."""
    if asked == "auto":
        return "cuda:0" if gpus else CPU
    if asked == CPU:
        return CPU
    index = int(asked.removeprefix("cuda").removeprefix(":") or 0)
    if index < gpus:
        return f"cuda:{index}"
    shown = f"cuda:0 to cuda:{gpus - 1}" if gpus else "no GPU"
    raise NoDevice(
        f"device: cuda:{index} was asked for and CUDA shows this process {shown}; look at nvidia-smi, at "
        "CUDA_VISIBLE_DEVICES and whether torch.version.cuda is set, or choose --device cpu"
    )
