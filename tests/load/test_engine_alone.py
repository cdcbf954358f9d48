from livescale.load.engine_alone import CONTEXT, undisturbed
from livescale.load.records import Ask
from tests.checkpoints import tiny_checkpoint


async def test_the_undisturbed_run_is_the_same_every_time_and_sampled_where_asked() -> None:
    asks = [Ask(0, 0.0, [5, 6, 7], 12), Ask(1, 0.0, [5, 6, 7], 12, temperature=0.8, seed=3)]
    first = await undisturbed(tiny_checkpoint("llama"), "float32", asks)
    again = await undisturbed(tiny_checkpoint("llama"), "float32", asks[1:])
    assert {index: len(tokens) for index, tokens in first.items()} == {0: 12, 1: 12}
    assert again[1] == first[1] != first[0]
    assert CONTEXT >= 256


async def test_the_undisturbed_run_takes_however_many_requests_there_were() -> None:
    answers = await undisturbed(
        tiny_checkpoint("llama"), "float32", [Ask(index, 0.0, [index + 2], 2) for index in range(120)]
    )
    assert [len(answers[index]) for index in range(120)] == [2] * 120


async def test_several_ranks_are_an_engine_whose_bits_are_their_own() -> None:
    asks = [Ask(index, 0.0, [5, 6, index], 40, temperature=0.8, seed=index) for index in range(3)]
    one, two, again = [
        await undisturbed(tiny_checkpoint("mixtral"), "bfloat16", asks, "panels", shards=shards) for shards in (1, 2, 2)
    ]
    assert two == again != one
    assert [len(tokens) for tokens in two.values()] == [40] * 3
