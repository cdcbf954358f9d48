"""Bare processes that pass requests on, over a real NATS server."""

from pathlib import Path

from livescale.load.bench.control.bare_hops import STEP_SECONDS, bare_hops
from livescale.load.bench.control.ways import fetch, in_turns
from livescale.load.client import open_client
from livescale.services.supervisor.bus_server import start_nats
from livescale.services.supervisor.credentials import OPERATOR
from livescale.services.supervisor.processes import Supervisor


async def test_each_request_is_answered_with_as_many_tokens_as_it_asks_for(tmp_path: Path) -> None:
    async with Supervisor(lambda name, line: None) as supervisor:
        urls = await start_nats(supervisor, tmp_path / "nats", "bench")
        with bare_hops(urls[OPERATOR]) as url:
            async with open_client(url, "bench", 10.0) as client:
                for number, tokens in enumerate((1, 65)):
                    await fetch(client, number, tokens)  # raises where its answer is not whole

                async def ask(number: int) -> None:
                    await fetch(client, number, 4)

                took = await in_turns({"bare": ask}, 3)
    assert len(took["bare"].seconds) == 3
    assert took["bare"].seconds[0] >= 4 * STEP_SECONDS
