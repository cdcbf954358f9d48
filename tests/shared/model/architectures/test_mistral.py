from tests.shared.model.architectures.published import described


def test_rows_see_a_window_only_where_the_file_says_one_that_is_shorter_than_the_context() -> None:
    name = "Mistral-7B-Instruct-v0.3"
    context = described(name).max_position_embeddings
    windows = [described(name, sliding_window=window).kind(0).window for window in (None, 4_096, context)]
    assert windows == [0, 4_096, 0]
