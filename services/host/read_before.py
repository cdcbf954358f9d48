"""What an earlier read of a checkpoint found: its version is known before it is read again, as long as the files are
the same. A small JSON file beside the checkpoint, or in a directory for such files."""

import os
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from livescale.services.host.checkpoint import Checkpoint
from livescale.services.host.checkpoint_files import INDEX
from livescale.shared.messages.parameters import Manifest
from livescale.shared.model.checkpoint import CheckpointError, read_file

LIMIT_BYTES = 1 << 20
Checksum = Annotated[int, Meta(ge=0)]


class FileFound(msgspec.Struct, frozen=True):
    """A file of the checkpoint, as it was when it was read."""

    name: str
    size_bytes: int
    modified_ns: int


class ReadBefore(msgspec.Struct, frozen=True, kw_only=True):
    """All that is not known from the headers alone."""

    files: list[FileFound]
    version: str
    checksums: list[Checksum]


def find_files(checkpoint: Checkpoint) -> list[FileFound]:
    """The files that hold the parameters, and which says what lies where. Raises OSError."""
    paths = {stored.file for stored in checkpoint.stored.values()}
    index = checkpoint.directory / INDEX
    found = []
    for path in sorted({*paths, index} if index.exists() else paths):
        status = path.stat()
        found.append(FileFound(path.name, status.st_size, status.st_mtime_ns))
    return found


def find_mode(checkpoint: Checkpoint) -> int:
    """Whoever may read all of its files may read a copy of them. Raises OSError."""
    mode = 0o666
    for path in {stored.file for stored in checkpoint.stored.values()}:
        mode &= path.stat().st_mode
    return mode


def load_manifest(path: Path, checkpoint: Checkpoint) -> Manifest | None:
    """What `checkpoint` holds, where it was read before and nothing changed; None where that is not known.

    Raises OSError, CheckpointError, msgspec.DecodeError.
    """
    before = msgspec.json.decode(read_file(path, LIMIT_BYTES), type=ReadBefore)
    if before.files != find_files(checkpoint) or len(before.checksums) != len(checkpoint.layouts):
        return None
    try:
        manifest = checkpoint.manifest(before.checksums)
    except ValueError as error:  # a checksum of more than 64 bits
        raise CheckpointError(f"{path}: {error}") from None
    return manifest if manifest.version == before.version else None


def save_manifest(path: Path, files: list[FileFound], manifest: Manifest, mode: int) -> None:
    """Whoever reads `path` finds all of it, or what was there before. Raises OSError."""
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


def find_places(checkpoint: Checkpoint, directory: str) -> list[Path]:
    """Where this and the packed form may lie, without their endings: the best first.

    In `directory` where there is one; else beside the checkpoint, or in the user's cache where nobody may write there.
    Whoever may write to these may have other parameters served.
    """
    ranks = f"-{checkpoint.shards}-ranks" if checkpoint.shards > 1 else ""
    form = checkpoint.dtype + ranks + ("-panels" if checkpoint.layout == "panels" else "")
    own = f"{checkpoint.directory.name}-{sha256(bytes(checkpoint.directory)).hexdigest()[:16]}-{form}"
    if directory:
        return [Path(directory) / own]
    beside = checkpoint.directory / f"livescale-{form}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    # A user whom the system does not know has no home.
    return [beside, cache / "livescale" / "packed" / own] if cache.is_absolute() else [beside]
