"""A system in an emulated cluster: every worker and host has its place, and parameters travel between them."""

from pathlib import Path

import pytest

from tests.system.conftest import MIB, started

pytestmark = [pytest.mark.system, pytest.mark.slow]

LAB = """
hosts:
  - name: a
    count: 2
    memory: 2 GiB
    nic: 100 MB/s
    disk: 1 GB/s
    gpus: [{memory: 1 GiB, host-link: 500 MB/s}]
"""


def test_workers_stand_for_gpus_and_load_over_shaped_links(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(LAB)
    with started(tmp_path, "--topology", str(tmp_path / "lab.yaml"), "--shaped") as system:
        system.command("scale", "m", "--instances", "2", "--wait")
        status = system.status()
        assert [(row["id"], row["host"], row["place"]) for row in status["workers"]] == [
            ("worker-0", "a0", "a0/0"),
            ("worker-1", "a1", "a1/0"),
        ]
        hosts = {row["id"]: row["host"] for row in status["processes"] if row["service"] == "host"}
        assert hosts == {"host-0": "a0", "host-1": "a1"}
        small = ("--arena-bytes", str(MIB), "--kv-bytes", str(MIB))
        taken = system.command("run", "worker", "--id", "worker-9", "--place", "a0/0", *small, check=False)
        assert taken.returncode == 1
        assert "place 'a0/0' is taken by worker-0: choose another with --place" in taken.stderr
