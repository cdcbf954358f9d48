"""The ways to read a model from a disk, timed: as fast as the disk can, as a host does, and as programs do that load
safetensors and copy."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from math import prod
from pathlib import Path

from livescale.load.bench.samples import BenchFailed
from livescale.services.host.disk import READS, ThreadDisk, allocate
from livescale.services.host.packed_file import CHUNK_BYTES
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import DType
from livescale.shared.model.block_layout import ITEM_BYTES, block_layouts
from livescale.shared.model.checkpoint import load_model_config
from livescale.shared.transfer.flow_end import ReadyBlocks

DTYPE: DType = "bfloat16"


def raw_buffers() -> list[memoryview]:
    """Memory for `read_raw`: a chunk for each read that a host has under way."""
    return allocate([CHUNK_BYTES] * READS)


def read_raw(packed: Path, scratch: Sequence[memoryview]) -> float:
    """Seconds that the disk takes: direct reads into `scratch`, one at a time into each, and checked by nobody.

    Raises BenchFailed.
    """
    try:
        file = os.open(packed, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        raise BenchFailed(f"{packed.parent}: no direct reads there ({error.strerror}); run this on a disk") from error

    def read(number: int) -> None:
        for offset in range(number * CHUNK_BYTES, os.fstat(file).st_size, len(scratch) * CHUNK_BYTES):
            os.preadv(file, [scratch[number]], offset)

    began = time.perf_counter()
    try:
        with ThreadPoolExecutor(len(scratch)) as threads:
            list(threads.map(read, range(len(scratch))))
    finally:
        os.close(file)
    return time.perf_counter() - began


async def read_model(
    directory: Path, memory: Sequence[memoryview], *, packed: bool = True, ready: ReadyBlocks | None = None
) -> float:
    """Seconds that a host which is up takes to read the model, checksums included: from the packed form, or from
    safetensors. Raises BenchFailed."""
    disk = ThreadDisk(keep=packed)
    stored = await disk.open(ModelSpec(name="bench", path=str(directory), dtype=DTYPE))
    began, index = time.perf_counter(), 0
    try:
        async with aclosing(disk.read(stored, dict(enumerate(memory)))) as read:
            async for _ in read:
                if ready is not None:
                    ready.add(index)
                index += 1
        if stored.is_packed != packed:
            raise BenchFailed(f"{directory}: the packed form was not read")
        return time.perf_counter() - began
    finally:
        stored.close()
        await disk.close()


def load_and_copy(directory: Path, memory: Sequence[memoryview]) -> float:
    """Seconds as programs take without a packed form: the library loads tensors, which are copied to where they are
    used."""
    import torch  # takes seconds, which --help would take, too
    from safetensors.torch import load_file

    began = time.perf_counter()
    tensors = load_file(directory / "model.safetensors")
    for layout, block in zip(block_layouts(load_model_config(directory), DTYPE), memory, strict=True):
        for tensor in layout.tensors:
            size_bytes = prod(tensor.shape) * ITEM_BYTES[DTYPE]
            target = torch.frombuffer(block, dtype=torch.bfloat16, offset=tensor.offset, count=size_bytes // 2)
            target.copy_(tensors[tensor.name].flatten())
    return time.perf_counter() - began
