"""The header of a safetensors file: where each tensor lies. Checked in full before any parameter is read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from livescale.shared.model.checkpoint import CheckpointError, open_regular

StoredDType = Literal["F32", "BF16", "F16"]
STORED_BYTES: dict[StoredDType, int] = {"F32": 4, "BF16": 2, "F16": 2}
HEADER_LIMIT_BYTES = 16 << 20  # a hundred thousand tensors; the format's own limit would take a gigabyte to decode
LONGEST_NAME = 256
AGAIN = "download or convert the checkpoint again"


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: Annotated[list[int], Meta(max_length=8)]
    data_offsets: tuple[int, int]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: `size_bytes` bytes from `start`, row-major, little-endian."""

    file: Path
    name: str
    dtype: StoredDType
    shape: tuple[int, ...]
    start: int
    size_bytes: int

    def rows(self, start: int, stop: int) -> "StoredTensor":
        """Some of its rows."""
        row_bytes = self.size_bytes // self.shape[0]
        begin, size_bytes = self.start + start * row_bytes, (stop - start) * row_bytes
        return replace(self, shape=(stop - start, *self.shape[1:]), start=begin, size_bytes=size_bytes)


def read_header(file: Path) -> dict[str, StoredTensor]:
    """All tensors of a file by name. Raises CheckpointError for a missing, truncated or malformed file."""
    try:
        with open_regular(file) as stream:
            file_bytes = stream.seek(0, 2)
            stream.seek(0)
            header_bytes = int.from_bytes(stream.read(8), "little")
            if not 2 <= header_bytes <= min(HEADER_LIMIT_BYTES, file_bytes - 8):
                raise CheckpointError(f"{file}: truncated, or not a safetensors file; {AGAIN}")
            header = stream.read(header_bytes)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}); {AGAIN}") from None
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
        # Of a name that comes twice every reader takes one of the two, and not every reader the same.
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
