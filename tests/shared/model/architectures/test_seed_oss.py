from tests.shared.model.architectures.published import described


def test_queries_keys_and_values_have_biases_and_the_output_has_none() -> None:
    model = described("Seed-OSS-36B-Instruct")
    assert (model.attention_bias, model.kind(0).output_bias) == (True, False)
