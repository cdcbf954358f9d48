from tests.shared.model.architectures.published import described


def test_two_of_eight_experts_compute_a_row_and_their_weights_add_up_to_one() -> None:
    model = described("Mixtral-8x7B-Instruct-v0.1")
    assert model.experts is not None
    assert (model.experts.count, model.experts.chosen, model.experts.normalized) == (8, 2, True)
    assert model.kind(0).experts
