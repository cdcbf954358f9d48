from tests.shared.model.architectures.published import described


def test_the_mlp_has_no_gate_and_everything_has_a_bias() -> None:
    model = described("starcoder2-15b")
    kind = model.kind(0)
    assert (kind.gated, kind.mlp_bias, kind.output_bias, model.attention_bias) == (False, True, True, True)
    assert (model.layer_norms, kind.window) == (True, 4_096)
