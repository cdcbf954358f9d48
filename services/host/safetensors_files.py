"""The safetensors files of a checkpoint: where each tensor lies, checked in full before any parameter is read.

The index may name files of its own directory only. Symbolic links are followed wherever they lead, because the hub's
cache is made of them: whoever may write into the directory may serve any file that has a checkpoint's form."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from livescale.shared.model.checkpoint import NO_GGUF, CheckpointError, open_regular, read_file
from livescale.shared.model.checkpoint_files import cannot_read

StoredDType = Literal["F32", "BF16", "F16", "I64", "I32", "I8", "U8", "F8_E4M3", "BOOL"]
STORED_BYTES: dict[StoredDType, int] = {
    "F32": 4,
    "BF16": 2,
    "F16": 2,
    "I64": 8,
    "I32": 4,
    "I8": 1,
    "U8": 1,
    "F8_E4M3": 1,
    "BOOL": 1,
}
FLOATS: tuple[StoredDType, ...] = ("F32", "BF16", "F16")
HEADER_LIMIT_BYTES = 16 << 20  # a hundred thousand tensors; the format's own limit would take a gigabyte to decode
LONGEST_NAME = 256
SCRATCH_BYTES = 8 << 20  # converting in pieces keeps them in the processor's cache
AGAIN = "download or convert the checkpoint again"

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
INDEX_LIMIT_BYTES = 16 << 20
MAX_NAMED = 5
LONGEST_NAMED = 256


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: Annotated[list[int], Meta(max_length=8)]
    data_offsets: tuple[int, int]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: `size_bytes` bytes from the offset `start`, row-major and little-endian."""

    file: Path
    name: str
    dtype: StoredDType
    shape: tuple[int, ...]
    start: int
    size_bytes: int

    def all_rows(self) -> "StoredTensor":
        """The matrices of the tensor one below the other, as one matrix in the same file."""
        return replace(self, shape=(prod(self.shape[:-1]), self.shape[-1]))

    def rows(self, start: int, stop: int) -> "StoredTensor":
        """The rows from `start` up to `stop`, as a tensor in the same file."""
        row_bytes = self.size_bytes // self.shape[0]
        begin, size_bytes = self.start + start * row_bytes, (stop - start) * row_bytes
        return replace(self, shape=(stop - start, *self.shape[1:]), start=begin, size_bytes=size_bytes)


def open_tensors(file: Path) -> BinaryIO:
    """Open a file of tensors. Raises CheckpointError."""
    try:
        return open_regular(file)
    except OSError as error:
        raise cannot_read(file, error, AGAIN) from None


def fill_bytes(stored: StoredTensor, stream: BinaryIO, offset: int, into: memoryview) -> None:
    """Fill `into` with the bytes of a tensor from `offset` on. Raises CheckpointError."""
    filled = 0
    while filled < into.nbytes:  # one read returns at most 2 GiB
        try:
            count = os.preadv(stream.fileno(), [into[filled:]], stored.start + offset + filled)
        except OSError as error:
            raise cannot_read(stored.file, error, "check the disk") from None
        if count == 0:
            raise CheckpointError(f"{stored.file}: ended inside {stored.name}: it changed while it was read; {AGAIN}")
        filled += count


def read_bytes(stored: StoredTensor) -> NDArray[np.uint8]:
    """Read the bytes of a tensor. Raises CheckpointError."""
    data = np.empty(stored.size_bytes, np.uint8)
    with open_tensors(stored.file) as stream:
        fill_bytes(stored, stream, 0, data.data)
    return data


def read_pieces(stored: StoredTensor, stream: BinaryIO) -> Iterator[memoryview]:
    """The tensor's bytes, some whole rows at a time; a piece is valid until the next."""
    row_bytes = stored.size_bytes // stored.shape[0]
    step = max(SCRATCH_BYTES // row_bytes, 1) * row_bytes
    scratch = memoryview(bytearray(min(step, stored.size_bytes)))
    for offset in range(0, stored.size_bytes, step):
        piece = scratch[: stored.size_bytes - offset]
        fill_bytes(stored, stream, offset, piece)
        yield piece


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name. Raises CheckpointError for a missing, truncated or malformed file."""
    try:
        with open_regular(file) as stream:
            file_bytes = stream.seek(0, 2)
            stream.seek(0)
            header_bytes = int.from_bytes(stream.read(8), "little")
            if not 2 <= header_bytes <= min(HEADER_LIMIT_BYTES, file_bytes - 8):
                raise CheckpointError(f"{file}: truncated, or not a safetensors file; {AGAIN}")
            header = stream.read(header_bytes)
    except OSError as error:
        raise cannot_read(file, error, AGAIN) from None
    entries = _decode(file, header)
    data_bytes = file_bytes - 8 - header_bytes
    described = max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if described != data_bytes:
        raise CheckpointError(
            f"{file}: holds {data_bytes} bytes of tensors, its header {described}: truncated or damaged; {AGAIN}"
        )
    return {name: _tensor(file, name, entry, 8 + header_bytes) for name, entry in entries.items()}


def _decode(file: Path, header: bytes) -> Mapping[str, _Entry]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
        # If a name occurs twice, readers disagree on which tensor it means.
        json.loads(header, object_pairs_hook=_unique)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: malformed safetensors header ({error}); {AGAIN}") from None
    if max(map(len, entries), default=0) > LONGEST_NAME:
        raise CheckpointError(f"{file}: has a tensor whose name is longer than {LONGEST_NAME}; {AGAIN}")
    return entries


def _unique(pairs: list[tuple[str, object]]) -> None:
    """Raises ValueError for a name that an object has twice."""
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise ValueError(f"{name[:LONGEST_NAME]!r} comes twice")
        names.add(name)


def _tensor(file: Path, name: str, entry: _Entry, data_start: int) -> StoredTensor:
    if entry.dtype not in STORED_BYTES:
        supported = ", ".join(STORED_BYTES)
        raise CheckpointError(f"{file}: {name} is {entry.dtype}; supported are {supported}: convert the checkpoint")
    start, end = entry.data_offsets
    size_bytes = prod(entry.shape) * STORED_BYTES[entry.dtype]
    if start < 0 or min(entry.shape, default=0) < 0 or end - start != size_bytes:
        raise CheckpointError(
            f"{file}: {name} has shape {entry.shape} and {entry.dtype}, which is {size_bytes} bytes, "
            f"but its offsets are {start} to {end}; {AGAIN}"
        )
    return StoredTensor(file, name, entry.dtype, tuple(entry.shape), data_start + start, size_bytes)


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def stored_tensors(directory: Path) -> Mapping[str, StoredTensor]:
    """The tensors of all files of a checkpoint by name. Raises CheckpointError."""
    if (directory / INDEX).exists():
        return _sharded(directory)
    if (directory / SINGLE).exists():
        return read_header(directory / SINGLE)
    if any(directory.glob("*.gguf")):
        raise CheckpointError(f"{directory}: {NO_GGUF}")
    pickled = any(directory.glob("*.bin"))
    remedy = "convert its *.bin files to safetensors" if pickled else AGAIN
    raise CheckpointError(f"{directory}: has neither {SINGLE} nor {INDEX}; {remedy}")


def _sharded(directory: Path) -> Mapping[str, StoredTensor]:
    path = directory / INDEX
    try:
        weight_map = msgspec.json.decode(read_file(path, INDEX_LIMIT_BYTES), type=_Index).weight_map
    except OSError as error:
        raise cannot_read(path, error, AGAIN) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: {error}; {AGAIN}") from None
    names = sorted(set(weight_map.values()))
    for name in names:
        # A checkpoint must not make the host read other files of its machine.
        if Path(name).name != name or {*"\0\\"} & {*name} or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{path}: {name[:LONGEST_NAMED]!r} is not the name of a safetensors file beside it; {AGAIN}"
            )
    headers = {name: read_header(directory / name) for name in names}
    absent = [tensor for tensor, name in weight_map.items() if tensor not in headers[name]]
    if absent:
        file = directory / weight_map[absent[0]]
        raise CheckpointError(f"{file}: lacks tensors that {INDEX} places there: {named(absent)}; {AGAIN}")
    return {tensor: headers[name][tensor] for tensor, name in weight_map.items()}


def named(names: list[str]) -> str:
    """Name the first ones, and count the others."""
    more = len(names) - MAX_NAMED
    return ", ".join(name[:LONGEST_NAMED] for name in names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
