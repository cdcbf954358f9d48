from tests.shared.model.architectures.published import described


def test_every_other_layer_sees_all_and_the_first_one_a_window() -> None:
    model = described("gemma-2-9b-it")
    assert [model.kind(layer).window for layer in range(4)] == [4_096, 0, 4_096, 0]


def test_embeddings_are_scaled_by_the_root_of_their_size_and_norms_counted_from_one() -> None:
    model = described("gemma-2-9b-it")
    assert (model.embedding_scale, model.norm_offset) == (3_584**0.5, 1.0)


def test_caps_that_a_file_leaves_out_are_there_and_those_that_are_null_are_not() -> None:
    name, key = "gemma-2-9b-it", "final_logit_softcapping"
    assert described(name).logits_cap == 30.0
    assert described(name, **{key: None}).logits_cap == 0.0
