from tests.shared.model.architectures.published import described


def test_layers_that_see_all_do_not_rotate() -> None:
    model = described("c4ai-command-r7b-12-2024")
    for layer in range(8):
        kind, sees_all = model.kind(layer), layer % 4 == 3
        assert kind.window == (0 if sees_all else 4_096)
        assert (kind.frequencies == (0.0,) * 64) == sees_all
