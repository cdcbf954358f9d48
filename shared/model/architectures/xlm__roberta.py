"""XLM-RoBERTa: RoBERTa for many languages."""

from livescale.shared.model.declaration.architecture import Architecture
from livescale.shared.model.declaration.encoder import describe_after_padding, encoder_names

ARCHITECTURE = Architecture(
    "XLMRobertaModel",
    "BGE-M3",
    describe_after_padding,
    renamed=encoder_names("roberta") | {"pooler": "classifier.dense", "score": "classifier.out_proj"},
    layers="roberta.encoder.layer.",
    unused=("roberta.pooler.", "pooler.", "lm_head."),
    example={"type_vocab_size": 1, "layer_norm_eps": 1e-5, "hidden_act": "gelu", "pad_token_id": 1},
)
