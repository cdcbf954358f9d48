"""The file that says what an earlier read of a model found: its version and its checksums, as long as its files are the
same."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from livescale.services.host.adapter import AdapterCheckpoint
from livescale.services.host.checkpoint import Checkpoint
from livescale.services.host.safetensors_files import INDEX
from livescale.shared.messages.parameters import Manifest
from livescale.shared.model.checkpoint import CheckpointError, read_file

MANIFEST_LIMIT_BYTES = 1 << 20
AnyCheckpoint = Checkpoint | AdapterCheckpoint
Checksum = Annotated[int, Meta(ge=0)]


class FileFound(msgspec.Struct, frozen=True):
    """A file of the checkpoint, with its size and time of change when it was read."""

    name: str
    size_bytes: int
    modified_ns: int


class ReadBefore(msgspec.Struct, frozen=True, kw_only=True):
    """What an earlier read found, as far as the headers of the files do not tell it."""

    files: list[FileFound]
    version: str
    checksums: list[Checksum]


def find_files(checkpoint: AnyCheckpoint) -> list[FileFound]:
    """The files that hold the parameters, and the index that says what lies where. Raises OSError."""
    paths = checkpoint.files
    index = checkpoint.directory / INDEX
    found = []
    for path in sorted({*paths, index} if index.exists() else paths):
        status = path.stat()
        found.append(FileFound(path.name, status.st_size, status.st_mtime_ns))
    return found


def find_mode(checkpoint: AnyCheckpoint) -> int:
    """The permissions of a copy: users who may read all files of the checkpoint may read it too. Raises OSError."""
    mode = 0o666
    for path in checkpoint.files:
        mode &= path.stat().st_mode
    return mode


def load_manifest(path: Path, checkpoint: AnyCheckpoint) -> Manifest | None:
    """The manifest of `checkpoint` where it was read before and nothing has changed; None where it is not known.

    Raises OSError, CheckpointError, msgspec.DecodeError.
    """
    before = msgspec.json.decode(read_file(path, MANIFEST_LIMIT_BYTES), type=ReadBefore)
    if before.files != find_files(checkpoint) or len(before.checksums) != len(checkpoint.layouts):
        return None
    try:
        manifest = checkpoint.manifest(before.checksums)
    except ValueError as error:  # a checksum of more than 64 bits
        raise CheckpointError(f"{path}: {error}") from None
    return manifest if manifest.version == before.version else None


def save_manifest(path: Path, files: list[FileFound], manifest: Manifest, mode: int) -> None:
    """Write the file at once: readers of `path` find all of it, or what was there before. Raises OSError."""
    checksums = [block.checksum for block in manifest.blocks]
    data = msgspec.json.encode(ReadBefore(files=files, version=manifest.version, checksums=checksums))
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
