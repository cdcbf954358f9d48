"""The rows of embeddings, and this engine's process."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from livescale.load.bench.engine.processes import EngineProcessFailed, engine_processes
from livescale.load.bench.models import embeddings as bench
from livescale.load.bench.models import embeddings_command as command
from livescale.load.bench.models.embeddings import (
    OWN,
    SENTENCES,
    EmbeddingRun,
    cosine,
    embedding_rows,
    measure_embeddings,
    texts,
)
from livescale.load.peers.protocol import AskGreedy, AskVectors, GreedyTokens, Vectors
from tests.checkpoints import tiny_checkpoint
from tests.load.bench.bench_output import records_of


@pytest.mark.parametrize(("own", "near", "kept"), [(12.1, 0.99995, [True, True]), (11.9, 0.9998, [False, False])])
def test_medians_are_compared_and_bars_told(own: float, near: float, kept: list[bool]) -> None:
    rates = {OWN.name: [1.0, own, 99.0], SENTENCES.name: [9.0, 10.0, 11.0]}
    run = EmbeddingRun(rates, {OWN.name: near, SENTENCES.name: 0.999})
    rate, own_cosine, theirs = embedding_rows("embeddings", "120m", run)
    assert (rate.value, rate.against, rate.bar) == (own, 10.0, 1.2)
    assert [rate.ok, own_cosine.ok, theirs.ok] == [*kept, None]


def test_texts_have_one_length_and_differ() -> None:
    made = texts(1)
    assert {len(text) for text in made} == {bench.TOKENS}
    assert len({tuple(text) for text in made}) == bench.TEXTS
    assert made != texts(2)


def test_this_engine_answers_with_vectors(tmp_path: Path) -> None:
    with (
        (tmp_path / "log").open("w") as log,
        engine_processes(tiny_checkpoint("bert"), log) as members,
        members.started(OWN) as member,
    ):
        first, again = (member.ask(AskVectors(texts(0)[:3]), Vectors) for _ in range(2))
        assert first.vectors == again.vectors
        assert cosine(first.vectors[0], first.vectors[0]) == pytest.approx(1.0)
        assert {len(np.frombuffer(vector, np.float32)) for vector in first.vectors} == {192}
        assert first.took.cpu > 0
        with pytest.raises(EngineProcessFailed, match="vectors are all it makes"):
            member.ask(AskGreedy([1], 1), GreedyTokens)


def test_without_the_peer_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where no peers are
    with (tmp_path / "log").open("w") as log, pytest.raises(EngineProcessFailed, match="make bench-peers"):
        measure_embeddings(tiny_checkpoint("bert"), "auto", 1, log, lambda line: None)


@pytest.mark.slow
@pytest.mark.skipif(not SENTENCES.is_installed, reason="sentence-transformers is not installed: make bench-peers")
def test_the_command_prints_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "kept_model", lambda size, tell, family: tiny_checkpoint(family))
    monkeypatch.setattr(command, "LOG", tmp_path / "log")
    result = CliRunner().invoke(command.embeddings, ["--rounds", "1", "--report", str(tmp_path / "report.html")])
    cases = [record["case"] for record in records_of(result)]
    assert sum(case.startswith("embeddings, 120m") for case in cases) == 3, result.output
    assert (tmp_path / "report.html").exists()
