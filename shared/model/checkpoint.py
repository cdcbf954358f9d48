"""A model's directory, given as such or fetched from the Hugging Face hub, and its `config.json` as `ModelConfig`.

What the engine does not compute is refused by name, never guessed.
"""

import re
from pathlib import Path
from typing import Any

import msgspec

from livescale.shared.messages.parameters import KvCacheDType, ModelConfig
from livescale.shared.model.architectures import find_architecture, model_types
from livescale.shared.model.checkpoint_files import CONFIG_LIMIT_BYTES, decode_file, open_regular, read_file
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.image_files import read_preprocessing
from livescale.shared.model.sentence_files import SentenceModel, read_sentence_model
from livescale.shared.model.use import read_use

__all__ = [
    "CONFIG_LIMIT_BYTES",
    "NO_GGUF",
    "CheckpointError",
    "load_model_config",
    "open_regular",
    "read_file",
    "resolve_model_path",
]

TEXT_ONLY = "a request carries tokens only; use a checkpoint of the text model alone"
NO_GGUF = "GGUF files are not served; give the checkpoint that they were made from, with config.json and *.safetensors"
# Kinds of model that people have and that are not served, as patterns of `model_type`, and what to do about them.
UNSERVED = {
    r".*(vl|vision|llava|image|video|omni|audio|whisper|pixtral|idefics|siglip|clip).*": TEXT_ONLY,
    r"gemma3|gemma3n|mistral3|llama4|mllama|phi4_multimodal|glm4v.*": TEXT_ONLY,
    r".*(mamba|jamba|rwkv|zamba|bamba|recurrent|granitemoehybrid|falcon_h1|nemotron_h|lfm2|qwen3_next).*": (
        "its layers keep a state that is no KV cache; use a model whose layers are all attention"
    ),
}

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TEXT_FILES = ["*.json", "*.jinja"]
PARAMETER_FILES = ["*.safetensors"]
HUB_TIMEOUT_SECONDS = 5.0


class _HfGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of generation_config.json that matter here."""

    eos_token_id: int | list[int] | None = None
    bos_token_id: int | None = None


def load_model_config(directory: Path, kv_cache_dtype: KvCacheDType = "auto") -> ModelConfig:
    """The configuration of the checkpoint in `directory`, with keys and values kept as `kv_cache_dtype` says.

    Raises CheckpointError.
    """
    path = directory / "config.json"
    # Unlike `exists`, `glob` passes over a directory that this user may not read; the next line says so.
    if not any(directory.glob(path.name)) and any(directory.glob("*.gguf")):
        raise CheckpointError(f"{directory}: {NO_GGUF}")
    raw = decode_file(path, dict[str, Any])
    generation_path = directory / "generation_config.json"
    generation = decode_file(generation_path, _HfGeneration) if generation_path.exists() else _HfGeneration()
    try:
        config = _describe(ConfigFile(raw), generation, read_sentence_model(directory))
        # Once more through the message's own bounds: a config that others would refuse must not leave this machine.
        config = msgspec.convert(msgspec.to_builtins(config), ModelConfig)
        config = msgspec.structs.replace(config, kv_cache_dtype=kv_cache_dtype)
    except (ValueError, msgspec.ValidationError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    if config.images is None:
        return config
    return msgspec.structs.replace(config, images=read_preprocessing(directory, config.images))


def _describe(raw: ConfigFile, generation: _HfGeneration, sentence: SentenceModel | None) -> ModelConfig:
    model_type = raw.text("model_type")
    architecture = find_architecture(model_type)
    if architecture is None:
        own_code = "its own code (auto_map) is never run; " if raw.mapping("auto_map") else ""
        raise CheckpointError(f"model_type {model_type[:80]!r} is not supported: {own_code}{_instead(model_type)}")
    config = architecture.quantized(read_use(raw, architecture, sentence), raw)
    raw.refuse_unread()
    bos = generation.bos_token_id
    if bos is None:
        bos = next(iter(raw.token_ids("bos_token_id")), None)
    eos = {*raw.token_ids("eos_token_id"), *_as_list(generation.eos_token_id)}
    return msgspec.structs.replace(config, eos_token_ids=sorted(eos), bos_token_id=bos)


def _instead(model_type: str) -> str:
    """What to do about a kind of model that is not served."""
    for family, remedy in UNSERVED.items():
        if re.fullmatch(family, model_type):
            return remedy
    return f"supported are {', '.join(model_types())}; use a checkpoint of one of them"


def _as_list(ids: int | list[int] | None) -> list[int]:
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else ids


def resolve_model_path(name_or_dir: str, *, parameters: bool = True) -> Path:
    """The directory of a model: the one that is named, or that of a hub id `org/name`, which is fetched.

    Fetching blocks for as long as it takes. Without `parameters` only configuration and tokenizer are fetched. Obeys
    HF_HUB_OFFLINE, HF_ENDPOINT and HF_HOME as huggingface_hub does. Raises CheckpointError.
    """
    path = Path(name_or_dir)
    try:
        is_directory = path.is_dir()
    except OSError as error:
        raise CheckpointError(
            f"{name_or_dir}: cannot be looked at ({error.strerror}); give another directory"
        ) from None
    if name_or_dir and is_directory:
        return path.resolve()
    if path.is_file() and path.suffix == ".gguf":
        raise CheckpointError(f"{name_or_dir}: {NO_GGUF}")
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
