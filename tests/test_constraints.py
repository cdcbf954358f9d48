"""What is installed is pinned: with and without CUDA the same, but for what CUDA itself brings."""

from pathlib import Path

ROOT = Path(__file__).parent.parent


# What FlashInfer brings.
FLASHINFER = {
    "apache-tvm-ffi",
    "einops",
    "flashinfer-python",
    "nccl-extensions",
    "nccl4py",
    "ninja",
    "tabulate",
}


def pins(file: str) -> dict[str, str]:
    return dict(line.split("==") for line in (ROOT / file).read_text().split())


def of_cuda(name: str) -> bool:
    return name == "cuda-bindings" or name.endswith("-cu12")


def test_with_cuda_everything_else_is_what_it_is_without() -> None:
    plain, cuda = pins("constraints.txt"), pins("constraints-cuda.txt")
    assert {name: cuda.get(name) for name in plain if not of_cuda(name)} == {
        name: version for name, version in plain.items() if not of_cuda(name)
    }
    added = cuda.keys() - plain.keys() - FLASHINFER
    assert all(name.startswith(("nvidia-", "cuda-", "triton")) or name.endswith("-cu13") for name in added), added


def test_ucx_is_of_the_same_version_for_both() -> None:
    plain, cuda = pins("constraints.txt"), pins("constraints-cuda.txt")
    for name in ("libucx", "libucxx", "ucxx"):
        assert plain[f"{name}-cu12"] == cuda[f"{name}-cu13"]
