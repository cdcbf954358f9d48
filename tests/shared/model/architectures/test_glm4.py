from tests.shared.model.architectures.published import described


def test_half_of_a_head_rotates_in_pairs_of_neighbours() -> None:
    model = described("GLM-4-9B-0414")
    assert (model.head_dim, model.rotary_dim, model.interleaved) == (128, 64, True)
