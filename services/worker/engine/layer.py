"""One decoder layer of Llama and Qwen2 (which differ by the biases of q, k and v)."""

import torch
from torch.nn.functional import rms_norm

from services.worker.engine.kv_store import KvStore
from services.worker.engine.parameters import Tensors, make_linear, padded
from services.worker.engine.rope import turn
from services.worker.engine.rows import Rows
from shared.messages.parameters import ModelConfig

# The attention kernel's bits depend on where its queries begin, modulo 16 bytes: each row begins at a multiple of 64.
ROW_STEP = 32


class Layer:
    """Layer `index`, made of the tensors of its block."""

    def __init__(self, config: ModelConfig, index: int, tensors: Tensors) -> None:
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        self._index = index
        self._epsilon = config.rms_norm_eps
        self._query_heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._head_dim = config.head_dim
        self._input_norm = tensors[f"{prefix}.input_layernorm.weight"]
        projections = (f"{attention}.{name}_proj" for name in "qkv")
        self._qkv = make_linear(tensors, *projections, out_step=ROW_STEP)
        self._output = make_linear(tensors, f"{attention}.o_proj")
        self._mlp_norm = tensors[f"{prefix}.post_attention_layernorm.weight"]
        self._gate = make_linear(tensors, f"{mlp}.gate_proj")
        self._up = make_linear(tensors, f"{mlp}.up_proj")
        self._down = make_linear(tensors, f"{mlp}.down_proj")

    def __call__(self, hidden: torch.Tensor, rows: Rows, store: KvStore) -> torch.Tensor:
        """`[row, hidden]` -> `[row, hidden]`, padding included; writes the others' keys and values into `store`."""
        attended = self._attend(self._normed(hidden, self._input_norm), rows, store)
        hidden = self._output.plus(attended, hidden)
        normed = self._normed(hidden, self._mlp_norm)
        return self._down.plus(self._up.times(normed, self._gate.swish(normed)), hidden)

    def _normed(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, weight.shape, weight, self._epsilon)

    def _attend(self, normed: torch.Tensor, rows: Rows, store: KvStore) -> torch.Tensor:
        features = (self._query_heads + 2 * self._kv_heads) * self._head_dim
        heads = self._qkv(normed)[:, :features].view(len(normed), -1, self._head_dim)
        turn(heads[:, : self._query_heads + self._kv_heads], rows.cosines, rows.sines)
        queries, keys_values = torch.split_with_sizes(
            heads[: rows.count], (self._query_heads, 2 * self._kv_heads), dim=1
        )
        store.write(self._index, rows.slots, keys_values.view(rows.count, 2, self._kv_heads, -1))
        grouped = torch.split_with_sizes(queries.view(rows.count, self._kv_heads, -1, self._head_dim), rows.lengths)
        parts = zip(rows.attentions, grouped, strict=True)
        results = [attention.attend(self._index, part) for attention, part in parts]
        return padded(torch.cat(results))
