"""BERT: all rows see each other, and the sum of each part's output and the residual is normalized."""

from livescale.shared.model.declaration.architecture import Architecture
from livescale.shared.model.declaration.encoder import describe_encoder, encoder_names

ARCHITECTURE = Architecture(
    "BertModel",
    "MiniLM, BGE, E5",
    describe_encoder,
    renamed=encoder_names("bert") | {"pooler": "bert.pooler.dense", "score": "classifier"},
    layers="bert.encoder.layer.",
    unused=("bert.pooler.", "pooler.", "cls."),
    example={"type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu"},
)
