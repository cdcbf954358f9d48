"""Makes checkpoints: Hugging Face directories with random parameters, for demos, tests and benchmarks."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer

from livescale.load.make_tokenizer import dialect_of, make_tokenizer, save_tokenizer, taught_dialect
from livescale.load.model_shapes import SHAPES, SHARD_BYTES, ModelShape
from livescale.load.quantize import group_of, quantization_config, quantize_all
from livescale.load.random_parameters import RandomParameters
from livescale.load.sizes import Quantized, Size
from livescale.load.teach import Lesson, Progress, Transcript, lessons, read_transcripts, teach
from livescale.services.gateway.chat_template import ChatTemplate
from livescale.shared.messages.parameters import Family, ModelConfig
from livescale.shared.model.architectures import architecture_of, find_architecture
from livescale.shared.model.block_layout import ITEM_BYTES, PANEL_ROWS
from livescale.shared.model.checkpoint import load_model_config
from livescale.shared.model.declaration.architecture import Architecture
from livescale.shared.model.declaration.tensors import Shapes

OF_TEXTS = {"vocab_size", "max_position_embeddings"}
RECIPE_FILE = "livescale-made.json"
CONTEXT, ENCODER_CONTEXT = 4_096, 514  # of which RoBERTa uses two for padding


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a made directory was made from; the file says that the directory is whole."""

    family: Family
    size: Size
    seed: int
    taught: str = ""  # a digest of the transcripts
    quantized: Quantized | None = None


def make_model(
    directory: Path,
    family: Family,
    size: Size,
    seed: int,
    transcripts: Path | None = None,
    progress: Progress = lambda line: None,
    quantized: Quantized | None = None,
) -> Path:
    """A checkpoint of about 1M (tiny), 30M (small), 120M (medium), 500M (large) or 50M (light-kv) parameters; the same
    bytes for the same seed. Of experts those count that a token uses. The KV of light-kv weighs against its parameters
    as that of an 8B model does.

    With `transcripts`, a file, the model is taught the answers in them. The matrices of its layers may be quantized.

    Returns at once where `directory` already is this model. Raises FileExistsError where it is anything else, OSError
    where it cannot be written, BadTranscripts, ValueError for a family whose models are not quantized so, or
    learn no texts.
    """
    _check_family(family, quantized, teaches=transcripts is not None)
    taught = [] if transcripts is None else read_transcripts(transcripts)
    digest = "" if transcripts is None else hashlib.sha256(transcripts.read_bytes()).hexdigest()
    recipe = Recipe(family, size, seed, digest, quantized)
    if _already_made(directory, recipe):
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    except OSError as error:
        raise OSError(f"{directory} cannot be written: {error}") from error
    try:
        _write(unfinished, recipe, taught, progress)
        unfinished.chmod(0o755)
        os.replace(unfinished, directory)  # so that a directory of that name is always whole
    except (OSError, SafetensorError) as error:
        if not _already_made(directory, recipe):  # another process may have been faster
            raise OSError(f"{directory} cannot be written: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return directory


def _check_family(family: Family, quantized: Quantized | None, *, teaches: bool) -> None:
    architecture = find_architecture(family)
    assert architecture is not None
    if teaches and architecture.takes_images:
        raise ValueError(f"{family} takes images, and learns no texts; give another family")
    has_rows = not architecture.transposes and not architecture.takes_images
    fits = architecture.fuses_experts if quantized == "mxfp4" else has_rows and not architecture.fuses_experts
    if quantized is not None and not fits:
        raise ValueError(
            f"{family} is not quantized to {quantized}; mxfp4 is for gpt_oss, the others for other models of texts but "
            "gpt2"
        )


def _already_made(directory: Path, recipe: Recipe) -> bool:
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return False
    remedy = "give another directory, or remove this one"
    try:
        found = msgspec.json.decode((directory / RECIPE_FILE).read_bytes(), type=Recipe)
    except (OSError, msgspec.DecodeError):
        raise FileExistsError(f"{directory} is not empty and was not made here; {remedy}") from None
    if found != recipe:
        raise FileExistsError(f"{directory} holds {found}, not {recipe}; {remedy}")
    return True


def _write(directory: Path, recipe: Recipe, transcripts: Sequence[Transcript], progress: Progress) -> None:
    shape = SHAPES.get((recipe.family, recipe.size), SHAPES["qwen2", recipe.size])
    architecture = find_architecture(recipe.family)
    assert architecture is not None
    known: Mapping[str, torch.Tensor] = {}
    if architecture.takes_images:
        _write_image_files(directory, recipe.family, shape, architecture)
    else:
        known = _write_text_files(directory, recipe, shape, transcripts, progress)
    _save_parameters(directory, recipe, load_model_config(directory), known)
    (directory / RECIPE_FILE).write_bytes(msgspec.json.encode(recipe))
    for file in filter(Path.is_file, directory.rglob("*")):
        file.chmod(0o644)  # safetensors writes files that only their owner can read, and containers run as another user


def _write_text_files(
    directory: Path, recipe: Recipe, shape: ModelShape, transcripts: Sequence[Transcript], progress: Progress
) -> Mapping[str, torch.Tensor]:
    """Write all but the parameters of a model of texts. Returns those that it has learned."""
    dialect = dialect_of(recipe.family)
    taught: list[Lesson] = []
    if transcripts:
        dialect = taught_dialect(recipe.family)
        special = {} if dialect.bos is None else {"bos_token": dialect.bos}
        taught = lessons(transcripts, ChatTemplate(dialect.chat_template, special, lambda: 0.0))
    texts = tuple(one.prompt + one.answer for one in taught)
    tokenizer = make_tokenizer(dialect, shape.vocab_size, recipe.seed, texts)
    save_tokenizer(tokenizer, dialect, directory)
    _save_json(directory / "config.json", _config(recipe.family, shape, tokenizer))
    if dialect.encodes:
        _save_pooling(directory, shape.hidden_size)
    else:
        _save_json(directory / "generation_config.json", _generation_config(recipe.family, tokenizer))
    return teach(directory, taught, tokenizer, recipe.seed, progress) if taught else {}


def _write_image_files(directory: Path, family: Family, shape: ModelShape, architecture: Architecture) -> None:
    """Write all but the parameters of a model of images."""
    config = _plain_config(family, shape, architecture, CONTEXT)
    _save_json(directory / "config.json", {key: config[key] for key in config.keys() - OF_TEXTS})
    size = architecture.example["image_size"]
    preprocessing = {"size": {"height": size, "width": size}, "resample": 2, "image_mean": [0.5] * 3}
    _save_json(directory / "preprocessor_config.json", preprocessing | {"image_std": [0.5] * 3})


def _save_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def _config(family: Family, shape: ModelShape, tokenizer: Tokenizer) -> dict[str, object]:
    architecture, dialect = find_architecture(family), dialect_of(family)
    assert architecture is not None
    if not architecture.generates:
        return _plain_config(family, shape, architecture, ENCODER_CONTEXT)
    ends = {
        "bos_token_id": dialect.bos and tokenizer.token_to_id(dialect.bos),
        "eos_token_id": tokenizer.token_to_id(dialect.end_of_turn),
        "pad_token_id": None,  # an architecture's own may lie beyond this vocabulary
    }
    if architecture.sizes:
        return ends | _plain_config(family, shape, architecture, CONTEXT)
    return {
        **asdict(shape),
        **ends,
        "model_type": family,
        "architectures": [architecture.class_name],
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        **architecture.example,
        **_expert_sizes(shape, architecture.example),
    }


def _plain_config(family: Family, shape: ModelShape, architecture: Architecture, context: int) -> dict[str, object]:
    """Of architectures without rotation, whose heads are the hidden size and all have keys of their own."""
    sizes = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.hidden_size // shape.head_dim,
        "max_position_embeddings": context,
    }
    return {
        "model_type": family,
        "architectures": [architecture.class_name],
        "dtype": "bfloat16",
        **{architecture.sizes.get(name, name): size for name, size in sizes.items()},
        **architecture.example,
    }


def _save_pooling(directory: Path, hidden_size: int) -> None:
    """Say as sentence-transformers do that vectors are means of rows, of the length 1."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    told = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(modules)
    ]
    (directory / "modules.json").write_text(json.dumps(told, indent=2) + "\n")
    (directory / "1_Pooling").mkdir(mode=0o755)
    _save_json(
        directory / "1_Pooling" / "config.json",
        {"word_embedding_dimension": hidden_size, "pooling_mode_mean_tokens": True},
    )


def _expert_sizes(shape: ModelShape, example: Mapping[str, object]) -> dict[str, int]:
    """The features of experts: those that a row uses have as many together as the MLP of this shape."""
    chosen = example.get("num_experts_per_tok")
    if not isinstance(chosen, int):
        return {}
    each = -(-shape.intermediate_size // (chosen * PANEL_ROWS)) * PANEL_ROWS
    return {key: each for key in ("intermediate_size", "moe_intermediate_size") if key in {**asdict(shape), **example}}


def _generation_config(family: Family, tokenizer: Tokenizer) -> dict[str, object]:
    dialect = dialect_of(family)
    ends = [tokenizer.token_to_id(end) for end in (dialect.end_of_turn, dialect.end_of_text)]
    return {
        "bos_token_id": dialect.bos and tokenizer.token_to_id(dialect.bos),
        "eos_token_id": ends,
        "pad_token_id": ends[1],
        "do_sample": False,
    }


def _save_parameters(directory: Path, recipe: Recipe, config: ModelConfig, known: Mapping[str, torch.Tensor]) -> None:
    """Llama's are in several files with an index, those of others in a single one: both occur."""
    shapes, drawn = architecture_of(config).stored_shapes(config), RandomParameters(config, recipe.seed)
    files = _cut(shapes, SHARD_BYTES[recipe.size]) if recipe.family == "llama" else [[*shapes]]
    group, size_bytes = group_of(shapes), 0
    weight_map: dict[str, str] = {}
    for number, names in enumerate(files, start=1):
        file = f"model-{number:05}-of-{len(files):05}.safetensors" if len(files) > 1 else "model.safetensors"
        tensors = {name: known[name] if known else drawn.draw(name, torch.Size(shapes[name])) for name in names}
        if recipe.quantized is not None:
            tensors = quantize_all(recipe.quantized, tensors, group)
        save_file(tensors, directory / file, {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
        size_bytes += sum(tensor.nbytes for tensor in tensors.values())
    if recipe.quantized is not None:
        path = directory / "config.json"
        more = {"quantization_config": quantization_config(recipe.quantized, group)}
        _save_json(path, json.loads(path.read_text()) | more)
    if len(files) > 1:
        total = {"total_size": size_bytes}
        _save_json(directory / "model.safetensors.index.json", {"metadata": total, "weight_map": weight_map})


def _cut(shapes: Shapes, limit_bytes: int) -> list[list[str]]:
    """The names of the tensors of each file, in order, and no more than fit."""
    files: list[list[str]] = [[]]
    for name, shape in shapes.items():
        if files[-1] and sum(_size_bytes(shapes[other]) for other in files[-1]) + _size_bytes(shape) > limit_bytes:
            files.append([])
        files[-1].append(name)
    return files


def _size_bytes(shape: Sequence[int]) -> int:
    return prod(shape) * ITEM_BYTES["bfloat16"]
