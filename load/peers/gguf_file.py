"""A Llama checkpoint in the format of llama.cpp, parameters as they are: bfloat16 matrices, float32 norms."""

import json
import math
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

ARCHITECTURE = "llama"
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

Config = dict[str, Any]
Bits = npt.NDArray[np.uint16]  # of bfloat16


def gguf_of(checkpoint: Path) -> Path:
    """Beside the checkpoint; written the first time. Raises ValueError for what is not a Llama in bfloat16."""
    target = checkpoint / "llama.gguf"
    if not target.exists():
        config = json.loads((checkpoint / "config.json").read_text())
        if config["model_type"] != "llama" or config.get("tie_word_embeddings"):
            raise ValueError(f"{checkpoint}: only Llama with a head of its own is written as GGUF")
        unfinished = target.with_suffix(".unfinished")
        write(unfinished, checkpoint, config)
        unfinished.rename(target)
    return target


def write(target: Path, checkpoint: Path, config: Config) -> None:
    writer = gguf.GGUFWriter(target, ARCHITECTURE)
    head_dim = config["head_dim"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("no_vocab")  # tokens come and go as ids
    factors = rope_factors(config["rope_parameters"], head_dim)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    for name, bits in tensors(checkpoint):
        add_tensor(writer, name, bits, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensor(writer: gguf.GGUFWriter, name: str, bits: Bits, config: Config) -> None:
    stem = name.removesuffix(".weight")
    prefix = ""
    if stem.startswith("model.layers."):
        number, stem = stem.removeprefix("model.layers.").split(".", 1)
        prefix = f"blk.{number}."
    if bits.ndim == 1:
        writer.add_tensor(f"{prefix}{NAMES[stem]}.weight", (bits.astype(np.uint32) << 16).view(np.float32))
        return
    heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}.get(stem)
    if heads is not None:
        bits = interleaved(bits, config[heads])
    raw = gguf.GGMLQuantizationType.BF16
    writer.add_tensor(f"{prefix}{NAMES[stem]}.weight", np.ascontiguousarray(bits).view(np.uint8), raw_dtype=raw)


def interleaved(bits: Bits, heads: int) -> Bits:
    """llama.cpp turns neighbours of a head, Hugging Face its halves."""
    return bits.reshape(heads, 2, -1, bits.shape[1]).swapaxes(1, 2).reshape(bits.shape)


def rope_factors(rope: Config, head_dim: int) -> npt.NDArray[np.float32] | None:
    """By what llama.cpp divides the frequencies: Llama 3.1's stretching of long waves."""
    if rope["rope_type"] != "llama3":
        return None
    factor, context = rope["factor"], rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]

    def divisor(index: int) -> float:
        wave = 2 * math.pi * rope["rope_theta"] ** (index / head_dim)
        keep = min(max((context / wave - low) / (high - low), 0.0), 1.0)
        return float(1 / ((1 - keep) / factor + keep))

    return np.array([divisor(index) for index in range(0, head_dim, 2)], np.float32)


def tensors(checkpoint: Path) -> Iterator[tuple[str, Bits]]:
    """Of all safetensors files. Raises ValueError for another dtype than bfloat16."""
    for file in sorted(checkpoint.glob("*.safetensors")):
        with file.open("rb") as stream:
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        start = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:start]).items():
            if name == "__metadata__":
                continue
            if entry["dtype"] != "BF16":
                raise ValueError(f"{file}: {name} is {entry['dtype']}, not BF16")
            begin, end = entry["data_offsets"]
            bits = np.frombuffer(data, np.uint16, (end - begin) // 2, start + begin)
            yield name, bits.reshape(entry["shape"])
