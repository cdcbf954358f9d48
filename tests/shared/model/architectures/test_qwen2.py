from tests.shared.model.architectures.published import described


def test_the_upper_layers_have_a_window_where_it_is_switched_on() -> None:
    name = "Qwen2.5-7B-Instruct"
    asked = {"sliding_window": 4_096, "max_window_layers": 20}
    off = described(name, **asked)
    on = described(name, use_sliding_window=True, **asked)
    assert {off.kind(layer).window for layer in range(28)} == {0}
    assert [layer for layer in range(28) if on.kind(layer).window] == list(range(20, 28))


def test_queries_keys_and_values_have_biases_though_no_file_says_so() -> None:
    assert described("Qwen2.5-7B-Instruct").attention_bias
