"""Streams whose log-probabilities are compared."""

from typing import Any

from livescale.load.bench.requests.log_probabilities import ToldAnswer, compared, metric_values, request_body

TEXT = """# TYPE pulled counter
pulled_total{model="m"} 2.0
pulled_total{model="n"} 1.0
other_total 7.0
"""


def told(*logprobs: float) -> ToldAnswer:
    return ToldAnswer([1] * len(logprobs), {"token_logprobs": list(logprobs)})


def test_a_stream_is_the_same_where_every_bit_is_each_time() -> None:
    first, second = told(-0.5, -1.25), told(-2.0)
    alone = [[first], [second]]
    assert compared("kill", alone, [[first, first], [second]]).ok
    row = compared("kill", alone, [[first, first], [second, told(-2.0000000000000004)]])
    assert (row.value, row.against, row.ok) == (1, 2, False)


def test_streams_are_unlike_and_some_are_greedy_or_penalised() -> None:
    bodies: list[Any] = [request_body(number) for number in range(30)]
    assert len({tuple(body["prompt"]) for body in bodies}) == len(bodies)
    assert {(body["temperature"] > 0, body["presence_penalty"] > 0) for body in bodies} == {
        (False, False),
        (True, True),
        (True, False),
    }


def test_a_metric_is_added_up_over_all_of_its_labels() -> None:
    assert list(metric_values([TEXT, TEXT], "pulled_total")) == [2.0, 1.0, 2.0, 1.0]
