"""Writes checkpoints of any size quickly, in the dtype that is served."""

import json
import os
from pathlib import Path

from livescale.shared.model.architectures import architecture_of
from livescale.shared.model.checkpoint import load_model_config

HIDDEN, INTERMEDIATE, VOCABULARY, HEADS = 1_024, 4_096, 4_096, 8
LAYER_BYTES = 2 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INTERMEDIATE)


def make_disk_model(directory: Path, size_bytes: int) -> Path:
    """A Llama of bfloat16 with at least so many bytes in layers. Raises OSError."""
    return write_llama(directory, VOCABULARY, HIDDEN, INTERMEDIATE, -(-size_bytes // LAYER_BYTES))


def write_llama(directory: Path, vocabulary: int, hidden: int, intermediate: int, layers: int) -> Path:
    """Write a Llama checkpoint in bfloat16, without a tokenizer. Raises OSError."""
    import torch  # takes seconds, which --help would take, too
    from safetensors.torch import save_file

    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": 4_096,
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config))
    model = load_model_config(directory)
    shapes = architecture_of(model).stored_shapes(model)
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.rand(shape, generator=generator).to(torch.bfloat16) for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors")
    return directory


def drop_cached(directory: Path) -> None:
    """Drop the files from the page cache, so that the next reader reads from the disk."""
    for path in directory.iterdir():
        file = os.open(path, os.O_RDWR)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
