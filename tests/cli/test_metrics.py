"""`livescale metrics` over a real NATS server, with services that answer as the real ones do."""

import asyncio
import json
import os
import sys
from pathlib import Path

from livescale.services.cli.metrics import write_targets
from tests.cli.answers import Answers, run
from tests.nats_server import NatsServer

GROUP = {
    "targets": ["127.0.0.1:9"],
    "labels": {"instance": "worker-0", "component": "worker", "machine": "h", "livescale_namespace": "default"},
}


async def test_the_metrics_of_all_processes_name_their_process(server: NatsServer, answers: Answers) -> None:
    result = await run(server, "metrics")
    assert 'process_resident_memory_bytes{process="worker-0"} 3.45e+08\n' in result.output


async def test_those_of_one_process_are_as_it_tells_them(server: NatsServer, answers: Answers) -> None:
    assert (await run(server, "metrics", "--process", "worker-0")).output.endswith(
        "\nprocess_resident_memory_bytes 3.45e+08\n"
    )
    refused = await run(server, "metrics", "--process", "worker-7")
    assert refused.exit_code == 1
    assert "no process 'worker-7' is alive; `livescale status` lists those that are" in refused.output


async def test_targets_are_a_file_for_prometheus(server: NatsServer, answers: Answers, tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    assert (await run(server, "metrics", "--targets", str(path))).exit_code == 0
    assert json.loads(path.read_text()) == [GROUP]
    assert [name for name in os.listdir(tmp_path) if "json" in name] == [path.name]
    assert json.loads((await run(server, "metrics", "--targets", "-")).output) == [GROUP]


async def test_a_file_is_kept_up_to_date(server: NatsServer, answers: Answers, tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    command = (sys.executable, "-m", "livescale.services.cli.main", "metrics", "--targets", str(path), "--every", "1")
    keeping = await asyncio.create_subprocess_exec(*command, env={**os.environ, "NATS_URL": server.url})
    try:
        for content in (None, "old"):
            if content is not None:
                path.write_text(content)
            async with asyncio.timeout(60):
                while not path.exists() or path.read_text() in ("", content):  # noqa: ASYNC110  # another process's
                    await asyncio.sleep(0.05)
            assert json.loads(path.read_text()) == [GROUP]
    finally:
        keeping.terminate()
        await keeping.wait()


async def test_only_a_file_can_be_kept_up_to_date(server: NatsServer) -> None:
    result = await run(server, "metrics", "--every", "5")
    assert result.exit_code == 2
    assert "name it with --targets FILE" in result.output


async def test_a_file_that_cannot_be_written_is_named(server: NatsServer, answers: Answers, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "targets.json"
    result = await run(server, "metrics", "--targets", str(path))
    assert result.exit_code == 1
    assert f"targets: {path}: No such file or directory" in result.output


def test_others_may_read_the_file(tmp_path: Path) -> None:
    path, mask = tmp_path / "targets.json", os.umask(0o022)
    try:
        write_targets(path, [])
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o644
