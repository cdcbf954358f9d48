"""llama.cpp as a peer, called by its C interface: bfloat16 parameters in memory, otherwise its own settings.

Checkpoints are first written in its format, GGUF: matrices in bfloat16, norms in float32.
"""

import json
import math
import mmap
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from livescale.load.peers.engine_process import Stopwatch, ask_engine, serve
from livescale.load.peers.protocol import Answer, GreedyTokens, Prompts, Question, Ready, StartEngine, StepSeconds

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
BATCH = 2_048
LONG, LONG_ROWS = 2_304, 4  # tokens of a request that is prefilled, and how many at a time
SHORT, SHORT_ROWS = 256, 32  # of one that decodes

ERROR = 4  # ggml's level

Logits = npt.NDArray[np.float32]


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
    """The factors by which llama.cpp divides the frequencies: Llama 3.1 stretches long waves."""
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
    """Yield the tensors of all safetensors files. Raises ValueError for another dtype than bfloat16."""
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


def log_errors(level: int, text: bytes, _: object) -> None:
    """Print the errors that llama.cpp logs, and drop the rest, which is much."""
    if level == ERROR:
        sys.stderr.write(text.decode())


class LlamaCpp:
    """Two contexts of one model: a cache has the same room for every sequence."""

    def __init__(self, start: StartEngine) -> None:
        self._log = llama.llama_log_callback(log_errors)  # in use until the process ends
        llama.llama_log_set(self._log, None)
        llama.llama_backend_init()
        before = time.monotonic()
        path = gguf_of(Path(start.checkpoint))
        converting = time.monotonic() - before  # once, and no part of a start
        parameters = llama.llama_model_default_params()
        parameters.use_mmap = False  # in memory with huge pages, as all others have it
        self._model = llama.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise ValueError(f"{path}: llama.cpp does not load it")
        vocabulary = llama.llama_model_get_vocab(self._model)
        self._vocab_size = llama.llama_vocab_n_tokens(vocabulary)
        self._long = self._context(LONG, LONG_ROWS)
        self._short = self._context(SHORT, SHORT_ROWS)
        self.ready = Ready(time.monotonic() - start.began - converting)

    def answer(self, question: Question) -> Answer:
        return ask_engine(self, question)

    def greedy(self, prompt: list[int], tokens: int) -> GreedyTokens:
        rows = [self._run(self._short, [prompt], 0)[0]]
        for place in range(len(prompt), len(prompt) + tokens - 1):
            rows.append(self._run(self._short, [[int(rows[-1].argmax())]], place)[0])
        self._forget(self._short)
        return GreedyTokens([int(row.argmax()) for row in rows], [row.tobytes() for row in rows])

    def prefill(self, prompts: Prompts) -> StepSeconds:
        watch = Stopwatch()
        chosen(self._run(self._long, prompts, 0))
        watch.mark()
        self._forget(self._long)
        return watch.took()

    def decode(self, prompts: Prompts, steps: int) -> StepSeconds:
        tokens = chosen(self._run(self._short, prompts, 0))
        watch = Stopwatch()
        for step in range(steps):
            tokens = chosen(self._run(self._short, tokens, len(prompts[0]) + step))
            watch.mark()
        self._forget(self._short)
        return watch.took()

    def _context(self, tokens: int, rows: int) -> llama.llama_context_p:
        parameters = llama.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = tokens * rows, rows
        parameters.n_batch = BATCH
        parameters.n_threads = parameters.n_threads_batch = 1
        parameters.no_perf = True
        context = llama.llama_init_from_model(self._model, parameters)
        if not context:
            raise ValueError(f"llama.cpp makes no context of {rows} sequences of {tokens} tokens")
        return context

    def _run(self, context: llama.llama_context_p, prompts: Sequence[Sequence[int]], start: int) -> list[Logits]:
        """The logits after each of these, which begin at position `start`; all in as few calls as batches allow."""
        rows = [
            (token, start + place, number, place == len(prompt) - 1)
            for number, prompt in enumerate(prompts)
            for place, token in enumerate(prompt)
        ]
        logits: list[Logits] = []
        for first in range(0, len(rows), BATCH):
            logits += self._batch(context, rows[first : first + BATCH])
        return logits

    def _batch(self, context: llama.llama_context_p, rows: Sequence[tuple[int, int, int, bool]]) -> list[Logits]:
        batch = llama.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for row, (token, position, sequence, draws) in enumerate(rows):
            batch.token[row], batch.pos[row], batch.logits[row] = token, position, draws
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
        code = llama.llama_decode(context, batch)
        llama.llama_batch_free(batch)
        if code:
            raise RuntimeError(f"llama_decode answered {code}")
        drawn = [row for row, one in enumerate(rows) if one[3]]
        shape = (self._vocab_size,)
        return [np.ctypeslib.as_array(llama.llama_get_logits_ith(context, row), shape).copy() for row in drawn]

    def _forget(self, context: llama.llama_context_p) -> None:
        llama.llama_memory_clear(llama.llama_get_memory(context), False)


def chosen(rows: Sequence[Logits]) -> Prompts:
    """The likeliest of each, as what comes next."""
    return [[int(row.argmax())] for row in rows]


def main(descriptor: int) -> None:
    serve(descriptor, LlamaCpp)
