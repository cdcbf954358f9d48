from tests.shared.model.architectures.published import described


def test_logits_are_divided_by_what_the_file_calls_their_scaling() -> None:
    model = described("granite-3.1-8b-instruct")
    assert model.logits_scale == 1 / 16
    assert (model.embedding_scale, model.kind(0).residual_scale) == (12.0, 0.22)


def test_without_its_factors_it_is_llama_but_for_scores() -> None:
    ones = dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling"), 1.0)
    model = described("granite-3.1-8b-instruct", **ones, attention_multiplier=128**-0.5)
    assert (model.embedding_scale, model.logits_scale, model.kind(0).residual_scale) == (1.0, 1.0, 1.0)
    assert model.kind(0).attention_scale == 128**-0.5
