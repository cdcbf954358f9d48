"""A model's directory, given as such or fetched from the Hugging Face hub, and its `config.json` as `ModelConfig`.

What the engine does not compute is refused by name, never guessed.
"""

import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import msgspec

from livescale.shared.messages.parameters import Family, ModelConfig, RopeScaling

ARCHITECTURES: dict[str, str] = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
SUPPORTED = "dense Llama 2/3 and Qwen2/2.5 in float32, bfloat16 or float16"

CONFIG_LIMIT_BYTES = 16 << 20

T = TypeVar("T")

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TEXT_FILES = ["*.json", "*.jinja"]
PARAMETER_FILES = ["*.safetensors"]
HUB_TIMEOUT_SECONDS = 5.0


class CheckpointError(ValueError):
    """A checkpoint that cannot be served; the message names the file and the remedy."""


class _HfConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of config.json that change what is computed; defaults are those of transformers."""

    model_type: str
    architectures: list[str] | None = None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int
    original_max_position_embeddings: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float = 1.0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 0
    layer_types: list[str] | None = None
    quantization_config: Any = None
    compression_config: Any = None
    eos_token_id: int | list[int] | None = None
    bos_token_id: int | None = None


class _HfGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of generation_config.json that matter here."""

    eos_token_id: int | list[int] | None = None
    bos_token_id: int | None = None


def load_model_config(directory: Path) -> ModelConfig:
    """The configuration of the checkpoint in `directory`. Raises CheckpointError."""
    path = directory / "config.json"
    raw = _decode(path, _HfConfig)
    generation_path = directory / "generation_config.json"
    generation = _decode(generation_path, _HfGeneration) if generation_path.exists() else _HfGeneration()
    try:
        config = _translate(raw, generation)
        # Once more through the message's own bounds: a config that others would refuse must not leave this machine.
        return msgspec.convert(msgspec.to_builtins(config), ModelConfig)
    except (CheckpointError, msgspec.ValidationError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def _decode(path: Path, type: type[T]) -> T:
    try:
        return msgspec.json.decode(read_file(path, CONFIG_LIMIT_BYTES), type=type)
    except OSError as error:
        remedy = "give a directory in Hugging Face format, with config.json and *.safetensors"
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
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
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise CheckpointError(f"{path}: not a regular file; download the checkpoint again")
    return file


def _translate(raw: _HfConfig, generation: _HfGeneration) -> ModelConfig:
    _refuse_unknown_architecture(raw)
    _refuse_uncomputed(raw)
    _refuse_odd_shapes(raw)
    rope = dict(raw.rope_scaling or raw.rope_parameters or {})
    bos = generation.bos_token_id if generation.bos_token_id is not None else raw.bos_token_id
    return ModelConfig(
        family=cast(Family, raw.model_type),
        vocab_size=raw.vocab_size,
        hidden_size=raw.hidden_size,
        intermediate_size=raw.intermediate_size,
        num_hidden_layers=raw.num_hidden_layers,
        num_attention_heads=raw.num_attention_heads,
        num_key_value_heads=_kv_heads(raw),
        head_dim=_head_dim(raw),
        rms_norm_eps=raw.rms_norm_eps,
        rope_theta=_number(rope, "rope_theta", raw.rope_theta),
        max_position_embeddings=raw.max_position_embeddings,
        rope_scaling=_rope_scaling(raw, rope),
        tie_word_embeddings=raw.tie_word_embeddings,
        attention_bias=raw.model_type == "qwen2",  # implied: its config.json does not say so
        eos_token_ids=sorted({*_as_list(raw.eos_token_id), *_as_list(generation.eos_token_id)}),
        bos_token_id=bos,
    )


def _refuse_unknown_architecture(raw: _HfConfig) -> None:
    expected = ARCHITECTURES.get(raw.model_type)
    if expected is None:
        raise CheckpointError(f"model_type {raw.model_type!r} is not supported; supported are {SUPPORTED}")
    if raw.architectures is not None and expected not in raw.architectures:
        raise CheckpointError(f"architectures {raw.architectures} has no {expected}; supported are {SUPPORTED}")


def _refuse_uncomputed(raw: _HfConfig) -> None:
    llama = raw.model_type == "llama"
    refused = {
        "quantization_config": raw.quantization_config is not None,
        "compression_config": raw.compression_config is not None,
        "sliding_window": _slides(raw),
        "attention_bias": llama and raw.attention_bias,
        "mlp_bias": llama and raw.mlp_bias,
        "hidden_act": raw.hidden_act != "silu",
        "partial_rotary_factor": raw.partial_rotary_factor != 1.0,
    }
    for field, is_refused in refused.items():
        if is_refused:
            raise CheckpointError(f"{field} as set here is not supported; supported are {SUPPORTED}")


def _slides(raw: _HfConfig) -> bool:
    """Whether any layer attends to a window only; Qwen2 ships with a window that is switched off."""
    if raw.layer_types is not None:
        return any(kind != "full_attention" for kind in raw.layer_types)
    if raw.sliding_window is None:
        return False
    return raw.model_type == "llama" or (raw.use_sliding_window and raw.max_window_layers < raw.num_hidden_layers)


def _refuse_odd_shapes(raw: _HfConfig) -> None:
    sizes = {
        "vocab_size": raw.vocab_size,
        "hidden_size": raw.hidden_size,
        "intermediate_size": raw.intermediate_size,
        "num_hidden_layers": raw.num_hidden_layers,
        "num_attention_heads": raw.num_attention_heads,
        "num_key_value_heads": raw.num_key_value_heads or raw.num_attention_heads,
        "max_position_embeddings": raw.max_position_embeddings,
    }
    for field, value in sizes.items():
        if value < 1:
            raise CheckpointError(f"{field} is {value}, must be positive; repair or download the file again")
    if raw.num_attention_heads % _kv_heads(raw):
        raise CheckpointError(
            f"num_attention_heads {raw.num_attention_heads} is no multiple of num_key_value_heads {_kv_heads(raw)}"
        )
    if _head_dim(raw) < 2 or _head_dim(raw) % 2:
        raise CheckpointError(f"head_dim {_head_dim(raw)} must be even and positive, as RoPE rotates pairs")


def _rope_scaling(raw: _HfConfig, rope: dict[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if any(isinstance(value, dict) for value in rope.values()):
        raise CheckpointError(f"RoPE parameters that differ by layer are not supported; supported are {SUPPORTED}")
    if _number(rope, "partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(f"partial_rotary_factor is not supported; supported are {SUPPORTED}")
    if kind == "default":
        return None
    if kind != "llama3":
        raise CheckpointError(f"rope_type {kind!r} is not supported; supported are 'default' and 'llama3'")
    rope.setdefault("original_max_position_embeddings", raw.max_position_embeddings)
    if raw.original_max_position_embeddings is not None:
        rope["original_max_position_embeddings"] = raw.original_max_position_embeddings
    known = {field: rope[field] for field in RopeScaling.__struct_fields__ if field in rope}
    try:
        return msgspec.convert(known, RopeScaling)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"llama3 RoPE scaling: {error}") from None


def _number(values: dict[str, Any], field: str, default: float) -> float:
    value = values.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckpointError(f"{field} is {value!r}, must be a number")
    return float(value)


def _kv_heads(raw: _HfConfig) -> int:
    return raw.num_key_value_heads or raw.num_attention_heads


def _head_dim(raw: _HfConfig) -> int:
    return raw.head_dim or raw.hidden_size // raw.num_attention_heads


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
