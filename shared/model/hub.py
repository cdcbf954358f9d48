"""Where a model's directory is: given as such, or fetched from the Hugging Face hub."""

import re
from pathlib import Path

from livescale.shared.model.checkpoint import CheckpointError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TEXT_FILES = ["*.json", "*.jinja"]
PARAMETER_FILES = ["*.safetensors"]
HUB_TIMEOUT_SECONDS = 5.0


def resolve_model_path(name_or_dir: str, *, parameters: bool = True) -> Path:
    """The directory, or that of the hub id `org/name` after fetching it, which blocks for as long as that takes.

    Without `parameters` only configuration and tokenizer are fetched.

    Obeys HF_HUB_OFFLINE, HF_ENDPOINT and HF_HOME as huggingface_hub does. Raises CheckpointError.
    """
    path = Path(name_or_dir)
    if name_or_dir and path.is_dir():
        return path.resolve()
    if path.exists() or not HUB_ID.fullmatch(name_or_dir):
        raise CheckpointError(
            f"{name_or_dir}: no such directory; give a directory in Hugging Face format, or a hub id org/name"
        )
    return _fetch(name_or_dir, [*TEXT_FILES, *PARAMETER_FILES] if parameters else TEXT_FILES)


def _fetch(hub_id: str, files: list[str]) -> Path:
    # Half a second to import, and most models are directories.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError, RevisionResolutionError  # type: ignore[attr-defined]
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    try:
        return Path(snapshot_download(hub_id, allow_patterns=files, etag_timeout=HUB_TIMEOUT_SECONDS))
    except (OSError, ValueError, HTTPError, RevisionResolutionError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f"{hub_id}: no directory of that name here, and it could not be fetched from the hub ({reason}); "
            "give a directory in Hugging Face format, or make the hub reachable and the id readable"
        ) from error
