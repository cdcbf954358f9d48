import pytest

from livescale.load.bench.engine.cases import PREFILLS, attention_share, layer_shapes, mixed_question
from livescale.load.bench.engine.overhead import small_model


def test_what_attention_multiplies_grows_with_the_square() -> None:
    config = small_model(2).config
    one, two = (attention_share(config, [length]) for length in (1, 1_999))
    assert two == pytest.approx(1_000 * one)
    assert attention_share(config, [512] * 4) == attention_share(config, [512])
    heads = config.num_attention_heads * config.head_dim
    assert one * sum(rows * columns for rows, columns in layer_shapes(config)) == pytest.approx(2 * heads)


@pytest.mark.parametrize(("rounds", "each"), [(1, 200), (3, 67)])
def test_there_are_enough_steps_for_a_tail_however_many_rounds(rounds: int, each: int) -> None:
    assert mixed_question(1, 100, rounds).steps == each


def test_all_engines_are_asked_the_same_and_no_two_questions_alike() -> None:
    assert PREFILLS[3].question(1, 100) == PREFILLS[3].question(1, 100) != PREFILLS[3].question(2, 100)
    assert [len(prompt) for prompt in PREFILLS[3].question(1, 100).prompts] == [512] * 4
