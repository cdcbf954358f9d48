"""Encoders of the BERT family, from their `config.json`."""

from typing import Any

import pytest

from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.encoder import describe_after_padding, describe_encoder

BERT: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def test_rows_see_each_other_and_heads_do_not_rotate() -> None:
    model = describe_encoder(ConfigFile({**BERT, "hidden_act": "gelu_new", "type_vocab_size": 1}))
    kind = model.kind(0)
    assert (model.encodes, model.head_dim, model.token_types) == (True, 8, 1)
    assert kind.frequencies == (0.0,) * 4
    assert (kind.activation, kind.gated, kind.norms_before, kind.norms_sum) == ("gelu_tanh", False, False, True)


@pytest.mark.parametrize(("padding", "offset"), [({}, 2), ({"pad_token_id": 0}, 1), ({"pad_token_id": 5}, 6)])
def test_positions_of_roberta_begin_after_the_padding_tokens_row(padding: dict[str, int], offset: int) -> None:
    model = describe_after_padding(ConfigFile({**BERT, **padding, "max_position_embeddings": 514}))
    assert (model.position_offset, model.max_position_embeddings) == (offset, 514 - offset)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"num_attention_heads": 3}, "hidden_size 32 must be an even multiple of num_attention_heads, 3"),
        ({"num_attention_heads": 32}, "hidden_size 32 must be an even multiple of num_attention_heads, 32"),
        ({"hidden_act": "relu"}, "hidden_act 'relu' is not served; supported are gelu"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type must be 'absolute'"),
        ({"max_position_embeddings": 2}, "max_position_embeddings must be more than 2"),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        describe_after_padding(ConfigFile({**BERT, **fields}))
