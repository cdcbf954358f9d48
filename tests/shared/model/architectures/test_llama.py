from tests.shared.model.architectures.published import described


def test_attention_bias_means_the_output_of_attention_too() -> None:
    plain, biased = described("Llama-3.1-8B-Instruct"), described("Llama-3.1-8B-Instruct", attention_bias=True)
    assert (plain.attention_bias, plain.kind(0).output_bias) == (False, False)
    assert (biased.attention_bias, biased.kind(0).output_bias, biased.kind(0).mlp_bias) == (True, True, False)
