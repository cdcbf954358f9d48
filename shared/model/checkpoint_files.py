"""Small files of a checkpoint, read with bounds: never a pipe, a device, or more than fits."""

import os
import stat
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from livescale.shared.model.declaration.config_file import CheckpointError

CONFIG_LIMIT_BYTES = 16 << 20

T = TypeVar("T")


def cannot_read(path: Path, error: OSError, remedy: str) -> CheckpointError:
    """The error for a file that the system does not let us read. `remedy` is for all but missing rights."""
    if isinstance(error, PermissionError):
        remedy = "give this user the right to read it"
    return CheckpointError(f"{path}: cannot be read ({error.strerror}); {remedy}")


def decode_file(path: Path, type: type[T]) -> T:
    """A small JSON file of a checkpoint. Raises CheckpointError."""
    try:
        return msgspec.json.decode(read_file(path, CONFIG_LIMIT_BYTES), type=type)
    except OSError as error:
        remedy = "give a directory in Hugging Face format, with config.json and *.safetensors"
        raise cannot_read(path, error, remedy) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: {error}; repair or download the file again") from None


def read_file(path: Path, limit: int) -> bytes:
    """Read a small file of a checkpoint. Raises OSError, and CheckpointError where it is no file or exceeds `limit`."""
    # Neither a pipe, which would keep us waiting, nor a device, which might never end.
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise CheckpointError(f"{path}: larger than {limit} bytes; download the file again")
    return data


def open_regular(path: Path) -> BinaryIO:
    """Open a file unbuffered. Raises OSError, and CheckpointError where it is no regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path}: not a regular file; download the checkpoint again")
    return os.fdopen(descriptor, "rb", buffering=0)
