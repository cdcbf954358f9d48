import pytest

from tests.shared.model.architectures.published import described


def test_one_layer_in_six_sees_all_and_the_others_rotate_at_a_pace_of_their_own() -> None:
    model = described("gemma-3-1b-it")
    assert [layer for layer in range(12) if model.kind(layer).window == 0] == [5, 11]
    near, full = model.kind(0).frequencies, model.kind(5).frequencies
    assert near is not None
    assert near[1] == pytest.approx(10_000 ** (-2 / 256))
    assert full is None or full[1] == pytest.approx(1_000_000 ** (-2 / 256))
    assert model.rope_theta == 1_000_000
