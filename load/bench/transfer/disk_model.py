"""Writes checkpoints of any size quickly, in the dtype that is served, and reads a file as fast as the disk can."""

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file

from livescale.load.bench.samples import BenchFailed
from livescale.services.host.disk import READS, allocate
from livescale.services.host.packed_file import CHUNK_BYTES
from livescale.shared.model.block_layout import block_shapes
from livescale.shared.model.checkpoint import load_model_config

HIDDEN, INTERMEDIATE, VOCABULARY, HEADS = 1_024, 4_096, 4_096, 8
LAYER_BYTES = 2 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INTERMEDIATE)


def make_disk_model(directory: Path, size_bytes: int) -> Path:
    """A Llama of bfloat16 with at least so many bytes in layers. Raises OSError."""
    return write_llama(directory, VOCABULARY, HIDDEN, INTERMEDIATE, -(-size_bytes // LAYER_BYTES))


def write_llama(directory: Path, vocabulary: int, hidden: int, intermediate: int, layers: int) -> Path:
    """Write a Llama checkpoint in bfloat16, without a tokenizer. Raises OSError."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": 4_096,
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config))
    shapes = {
        name: shape for block in block_shapes(load_model_config(directory)).values() for name, shape in block.items()
    }
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.rand(shape, generator=generator).to(torch.bfloat16) for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors")
    return directory


def drop_cached(directory: Path) -> None:
    """Drop the files from the page cache, so that the next reader reads from the disk."""
    for path in directory.iterdir():
        file = os.open(path, os.O_RDWR)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


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
