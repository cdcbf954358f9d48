"""`livescale role` over a real NATS server, with a planner that answers as the real one does."""

from tests.cli.answers import Answers, run
from tests.nats_server import NatsServer


async def test_role_prints_what_changed_and_the_same_for_the_nats_cli(server: NatsServer, answers: Answers) -> None:
    result = await run(server, "role", "worker-0", "prefill")
    assert result.exit_code == 0
    assert "instance-1: colocated -> prefill" in result.output
    words = """req livescale.default.svc.planner.role '{"worker": "worker-0", "role": "prefill"}'"""
    assert words in result.output


async def test_a_worker_that_is_not_there_and_a_role_that_is_none_are_errors(
    server: NatsServer, answers: Answers
) -> None:
    result = await run(server, "role", "worker-9", "decode")
    assert result.exit_code == 1
    assert "no worker 'worker-9' is alive" in result.output
    result = await run(server, "role", "worker-0", "both")
    assert result.exit_code == 2
    assert "'colocated', 'prefill', 'decode'" in result.output
