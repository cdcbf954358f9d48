"""FlashInfer's kernels for attention over pages, in bfloat16 on a GPU, where `flashinfer-python` is installed.

Its bits are those of a row alone: it chooses its tiles by the mean number of rows of a span, which here all have, and
no sequence is split (`disable_split_kv`), as that depends on the batch; few and long contexts are slower for it.

Written against flashinfer-python 0.7.2 and, for want of a GPU, not yet run.
"""

from importlib import import_module
from typing import Any

import torch

from livescale.services.worker.engine.attention import Parts, TorchParts
from livescale.services.worker.engine.kv_store import KvStore
from livescale.services.worker.engine.paged_attention import KeysValues, PagedParts, Pages, Span, pages_of

HEAD_DIMS = (64, 128, 256)
BFLOAT16_GPU = (8, 0)  # the first that compute in it
WORKSPACE_BYTES = 1 << 20  # for sequences that are split


class FlashInferKernels:
    """Over caches with the shape of `store`; `group`: query heads to a KV head."""

    def __init__(self, store: KvStore, group: int) -> None:
        flashinfer: Any = import_module("flashinfer")
        _, _, kv_heads, _, head_dim = store.cache.shape
        self._device, self._dtype = store.cache.device, store.cache.dtype
        self._shape = group * kv_heads, kv_heads, head_dim, store.block_tokens
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
        # `HND`: in a page the tokens of a head lie together.
        self._wrapper: Any = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND", backend="fa2")
        self._planned = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def plan(self, rows: int, pages: Pages) -> None:
        """Raises RuntimeError and OSError where there are no kernels for this shape and they cannot be compiled."""
        # The plan before is copied to the GPU from memory that is written anew: it may still be on its way.
        self._planned.synchronize()
        queries = torch.arange(len(pages.last) + 1, dtype=torch.int32) * rows
        self._wrapper.plan(queries, *pages, *self._shape, causal=True, q_data_type=self._dtype, disable_split_kv=True)
        self._planned.record(torch.cuda.current_stream(self._device))

    def run(self, queries: torch.Tensor, keys_values: KeysValues) -> torch.Tensor:
        result: torch.Tensor = self._wrapper.run(queries, keys_values)
        return result


def find_flashinfer() -> bool:
    """Whether it is there. It is imported, which takes seconds."""
    try:
        import_module("flashinfer")
    except ImportError:
        return False
    return True


def fits_flashinfer(cache: torch.Tensor) -> bool:
    """Whether it has kernels for a KV cache like this, `[..., head_dim]`."""
    if cache.dtype != torch.bfloat16 or cache.shape[-1] not in HEAD_DIMS or not cache.is_cuda:
        return False
    return torch.cuda.get_device_capability(cache.device) >= BFLOAT16_GPU


def choose_parts(store: KvStore, group: int, positions: int, flashinfer: bool) -> Parts:
    """FlashInfer's where that is wanted and fits, else torch's, for requests of `positions` tokens. Raises RuntimeError
    where FlashInfer's cannot be had."""
    if not (flashinfer and fits_flashinfer(store.cache)):
        return TorchParts(store, group, positions)
    one, several = FlashInferKernels(store, group), FlashInferKernels(store, group)
    try:
        # Kernels are found, or compiled, now: no request waits for it.
        one.plan(1, pages_of([Span(first=0, rows=1, tokens=1, block=0)], store.block_tokens))
    except (RuntimeError, OSError) as error:
        raise RuntimeError(
            f"kernels: FlashInfer has none for heads of {store.cache.shape[-1]} and cannot compile them: {error}; "
            "install flashinfer-jit-cache for this CUDA, or choose --kernels torch"
        ) from error
    return PagedParts(store, one, several)
