"""`livescale scale` over a real NATS server, with a planner that answers as the real one does."""

from tests.cli.answers import Answers, run
from tests.nats_server import NatsServer


async def test_scale_prints_the_answer_and_the_same_for_the_nats_cli(server: NatsServer, answers: Answers) -> None:
    result = await run(server, "scale", "tiny", "--instances", "2")
    assert result.exit_code == 0
    assert answers.scaled_to == 2
    assert "tiny: 1 -> 2 instances: one spare worker" in result.output
    assert """req livescale.default.svc.planner.scale '{"model": "tiny", "instances": 2}'""" in result.output


async def test_scale_waits_for_the_end_of_the_scale(server: NatsServer, answers: Answers) -> None:
    result = await run(server, "scale", "tiny", "--instances", "2", "--wait")
    assert result.exit_code == 0
    assert "scale-1 done: told" in result.output
    assert answers.polls == 3


async def test_a_scale_that_failed_is_an_error(server: NatsServer, answers: Answers) -> None:
    answers.outcome = "failed"
    result = await run(server, "scale", "tiny", "--instances", "2", "--wait")
    assert result.exit_code == 1
    assert "livescale why tiny" in result.output


async def test_waiting_has_an_end(server: NatsServer, answers: Answers) -> None:
    result = await run(server, "scale", "tiny", "--instances", "2", "--wait", "--timeout", "0.1")
    assert result.exit_code == 1
    assert "has not ended after 0.1 s" in result.output
