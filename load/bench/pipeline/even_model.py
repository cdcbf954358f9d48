"""The checkpoint of `livescale bench pipeline`, whose blocks have equal size."""

import shutil
from collections.abc import Callable
from pathlib import Path

from livescale.load.bench.transfer.disk_model import write_llama
from livescale.load.kept import KEPT, kept_model

VOCABULARY, HIDDEN, INTERMEDIATE, LAYERS = 8_009, 512, 2_048, 4  # embedding, layers and head are alike


def kept_even_model(tell: Callable[[str], None]) -> Path:
    """A checkpoint whose blocks have equal size, so that the steps of a schedule do too. It is made the first time."""
    directory = KEPT / "models" / f"llama-even-{LAYERS}"
    if not directory.exists():
        tokenizer = kept_model("small", tell)
        tell(f"Making a checkpoint of even blocks in {directory}, this once ...")
        made = directory.with_suffix(".part")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizer / name, made)
        write_llama(made, VOCABULARY, HIDDEN, INTERMEDIATE, LAYERS)
        made.rename(directory)
    return directory
