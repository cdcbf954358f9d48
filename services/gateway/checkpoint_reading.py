"""Reads the text side of a checkpoint: its tokenizer, chat template, end-of-sequence ids and generation defaults."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from livescale.services.gateway.chat_template import ChatTemplate, TemplateRefusal, Wall
from livescale.services.gateway.checkpoint_text import (
    CheckpointText,
    GenerationDefaults,
    ModelUse,
)
from livescale.shared.messages.message import TokenId
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.checkpoint import CONFIG_LIMIT_BYTES, CheckpointError, load_model_config, read_file
from livescale.shared.model.use import SEVERAL_LABELS

TOKENIZER_LIMIT_BYTES = 128 << 20
MOST_ENDS = 1024

T = TypeVar("T")
Ends = TokenId | Annotated[list[TokenId], Meta(max_length=MOST_ENDS)]


class BadCheckpoint(Exception):
    """A file of the checkpoint is missing or not what it should be. The message names the file."""


class _Config(msgspec.Struct, frozen=True):
    """The fields of config.json that the gateway reads."""

    eos_token_id: Ends | None = None
    id2label: dict[str, str | int | float] | None = None
    problem_type: str | None = None

    def label(self, index: int) -> str:
        """What a label is called; transformers names those that the file does not."""
        return str((self.id2label or {}).get(str(index), f"LABEL_{index}"))


class _GenerationConfig(msgspec.Struct, frozen=True):
    """The fields of generation_config.json that the gateway reads."""

    eos_token_id: Ends | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class _AddedToken(msgspec.Struct, frozen=True):
    content: str


class _NamedTemplate(msgspec.Struct, frozen=True):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct, frozen=True):
    """The fields of tokenizer_config.json that the gateway reads."""

    bos_token: str | _AddedToken | None = None
    eos_token: str | _AddedToken | None = None
    pad_token: str | _AddedToken | None = None
    unk_token: str | _AddedToken | None = None
    chat_template: str | list[_NamedTemplate] | None = None

    @property
    def special_tokens(self) -> dict[str, str]:
        named = {
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "pad_token": self.pad_token,
            "unk_token": self.unk_token,
        }
        return {
            name: token.content if isinstance(token, _AddedToken) else token
            for name, token in named.items()
            if token is not None
        }


def load_checkpoint_text(directory: Path, wall: Wall) -> CheckpointText:
    """Read the text files of a directory in Hugging Face format. Blocks on the disk. Raises BadCheckpoint."""
    config = _read(directory / "config.json", _Config)
    generation = _read(directory / "generation_config.json", _GenerationConfig, missing=_GenerationConfig())
    said = _read(directory / "tokenizer_config.json", dict[str, Any], missing={})
    about = _read(directory / "tokenizer_config.json", _TokenizerConfig, missing=_TokenizerConfig())
    model = _model_config(directory)
    tokenizer = _read_tokenizer(directory / "tokenizer.json") if model.images is None else Tokenizer(WordLevel())
    special = about.special_tokens
    eos = {*_ids(generation.eos_token_id), *_ids(config.eos_token_id)}
    if "eos_token" in special:
        eos.update(_ids(tokenizer.token_to_id(special["eos_token"])))
    template = _template(directory, about, wall)
    defaults = _defaults(generation)
    use = _use(directory, model, config, tokenizer)
    return CheckpointText(tokenizer, template, tuple(sorted(eos)), model.vocab_size, defaults, special, said, use)


def _model_config(directory: Path) -> ModelConfig:
    try:
        return load_model_config(directory)
    except CheckpointError as error:
        raise BadCheckpoint(str(error)) from None


def _use(directory: Path, config: ModelConfig, said: _Config, tokenizer: Tokenizer) -> ModelUse:
    ids = []
    for token in config.classifier_from_token:
        id = tokenizer.token_to_id(token)
        if id is None:
            path = directory / "config.json"
            raise BadCheckpoint(f"{path}: classifier_from_token: the tokenizer has no token {token[:80]!r}")
        ids.append(id)
    return ModelUse(
        config.pooling,
        config.normalized,
        config.bare_scores,
        config.labels,
        tuple(map(said.label, range(config.labels))),
        said.problem_type == SEVERAL_LABELS,
        tuple(ids),
        config.images,
    )


def _read(path: Path, type: type[T], missing: T | None = None) -> T:
    data = _bytes(path, CONFIG_LIMIT_BYTES)
    if data is None:
        if missing is None:
            raise BadCheckpoint(f"{path} is missing")
        return missing
    try:
        return msgspec.json.decode(data, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadCheckpoint(f"{path} cannot be read: {error}") from None


def _bytes(path: Path, limit: int) -> bytes | None:
    """The file's content; None where there is no such file. It never waits for a pipe, nor reads a device."""
    try:
        return read_file(path, limit)
    except FileNotFoundError:
        return None
    except CheckpointError as error:
        raise BadCheckpoint(str(error)) from None
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read: {error.strerror}") from None


def _read_tokenizer(path: Path) -> Tokenizer:
    data = _bytes(path, TOKENIZER_LIMIT_BYTES)
    if data is None:
        raise BadCheckpoint(
            f"{path} is missing: only fast tokenizers are served; save the tokenizer as one with transformers"
        )
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # noqa: BLE001 the library raises nothing narrower
        raise BadCheckpoint(f"{path} cannot be read: {error}") from None
    # Texts are neither cut nor padded unless a client asks for it, whatever the file's last user asked for.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _template(directory: Path, about: _TokenizerConfig, wall: Wall) -> ChatTemplate | None:
    """Find the chat template: in a file of its own, or in tokenizer_config.json, alone or as one of several by name."""
    path, field = directory / "chat_template.jinja", ""
    data, source = _bytes(path, CONFIG_LIMIT_BYTES), about.chat_template
    if data is None:
        path, field = directory / "tokenizer_config.json", ": chat_template"
    try:
        if data is not None:
            source = data.decode()
        elif isinstance(source, list):
            source = next((one.template for one in source if one.name == "default"), None)
        return None if source is None else ChatTemplate(source, about.special_tokens, wall)
    except (TemplateRefusal, UnicodeDecodeError) as error:
        raise BadCheckpoint(f"{path}{field}: {error}") from None


def _ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _defaults(generation: _GenerationConfig) -> GenerationDefaults:
    """The recommended values that are within this gateway's bounds; others are meant for other libraries."""
    plain = GenerationDefaults()
    temperature, top_p, top_k = generation.temperature, generation.top_p, generation.top_k
    min_p, repetition_penalty = generation.min_p, generation.repetition_penalty
    return GenerationDefaults(
        temperature=temperature if temperature is not None and 0 <= temperature <= 2 else plain.temperature,
        top_p=top_p if top_p is not None and 0 < top_p <= 1 else plain.top_p,
        top_k=top_k if top_k is not None and top_k >= 0 else plain.top_k,
        min_p=min_p if min_p is not None and 0 <= min_p <= 1 else plain.min_p,
        repetition_penalty=(
            repetition_penalty
            if repetition_penalty is not None and 0 < repetition_penalty <= 100
            else plain.repetition_penalty
        ),
    )
