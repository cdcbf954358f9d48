from dataclasses import replace
from pathlib import Path

import pytest

from livescale.load.bench.engine.processes import ROOT, EngineProcess, EngineProcessFailed, Program, engine_processes
from livescale.load.bench.engine.run import PROGRAMS
from livescale.services.supervisor.commands import WORKER_ENV

OWN_PROGRAM = PROGRAMS[0]


@pytest.mark.system
def test_a_process_that_ends_is_said_to_have_ended(tmp_path: Path) -> None:
    with (
        (tmp_path / "log").open("w") as log,
        engine_processes(tmp_path, log) as members,
        pytest.raises(EngineProcessFailed, match="livescale ended"),
    ):
        members.start(OWN_PROGRAM)
    assert "config.json" in (tmp_path / "log").read_text()


def test_every_engine_has_the_settings_of_a_worker_for_its_memory(tmp_path: Path) -> None:
    tell = "import os; import livescale.load.peers.engine_process; print(os.environ['GLIBC_TUNABLES'], flush=True)"
    (tmp_path / "teller.py").write_text(tell)
    with (tmp_path / "log").open("w") as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr("livescale.load.bench.engine.processes.ROOT", f"{ROOT}:{tmp_path}")
        for program in PROGRAMS[:2]:
            member = EngineProcess(replace(program, module="teller"), tmp_path, 0, "auto", log)
            with pytest.raises(EngineProcessFailed, match="ended"):
                member.ready()
            member.end()
    told = (tmp_path / "log").read_text()
    assert told.count(WORKER_ENV["GLIBC_TUNABLES"]) == 2


def test_a_peer_is_installed_where_its_environment_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    peer = Program("peer", "livescale.load.peers.none", "peer_package")
    assert not peer.is_installed
    (tmp_path / ".peers/lib/python3.11/site-packages/peer_package").mkdir(parents=True)
    assert peer.is_installed
    assert peer.python == str(tmp_path / ".peers/bin/python")
