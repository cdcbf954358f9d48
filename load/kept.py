"""What load keeps between runs, below the working directory: made checkpoints and logs."""

from collections.abc import Callable
from pathlib import Path

from load.sizes import Size

KEPT = Path(".livescale")


def kept_model(size: Size, tell: Callable[[str], None]) -> Path:
    """A made checkpoint of this size, made the first time (`tell` is told) and kept."""
    directory = KEPT / "models" / f"llama-{size}-0"
    # A directory that was made is whole, and only making one needs torch here.
    if not directory.exists():
        tell(f"Making a {size} checkpoint in {directory}, this once ...")
        from load.make_model import make_model

        make_model(directory, "llama", size, 0)
    return directory
