from tests.shared.model.architectures.published import described


def test_each_head_is_normalized_and_nothing_has_biases() -> None:
    model = described("Qwen3-8B")
    assert (model.kind(0).head_norm, model.attention_bias) == ("head", False)
