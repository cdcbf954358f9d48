from tests.shared.model.architectures.published import described


def test_outputs_are_normalized_and_inputs_are_not() -> None:
    kind = described("OLMo-2-1124-7B-Instruct").kind(0)
    assert (kind.norms_before, kind.norms_after, kind.head_norm) == (False, True, "row")
