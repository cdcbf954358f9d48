"""Files that other processes read while they are written anew."""

import os
import secrets
from pathlib import Path

OWNER_ONLY = 0o600


def write_atomically(path: Path, data: bytes, mode: int = OWNER_ONLY) -> None:
    """Write a file so that its readers find all of `data`, or what was there before.

    `mode` is that of a new file before the umask, which the file gets even if there was one. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
