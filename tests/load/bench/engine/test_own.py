from pathlib import Path

import numpy as np
import pytest

from livescale.load.bench.engine.cases import mixed_question, prompts
from livescale.load.bench.engine.processes import EngineProcessFailed, engine_processes
from livescale.load.bench.engine.run import PROGRAMS
from livescale.load.peers.protocol import (
    AskDecode,
    AskGreedy,
    AskKept,
    AskLayerCost,
    AskPrefill,
    GreedyTokens,
    Kept,
    Mixed,
    StepSeconds,
)
from tests.checkpoints import tiny_checkpoint

OWN_PROGRAM = PROGRAMS[0]


@pytest.mark.slow
@pytest.mark.system
def test_this_engine_answers_everything_it_is_asked(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, engine_processes(tiny_checkpoint("llama"), log) as members:
        member, ready = members.start(OWN_PROGRAM)
        assert ready.last_block is not None
        assert 0 < ready.last_block < ready.answering
        asked = prompts(1, 1_000, (200, 60))
        assert member.ask(AskPrefill(asked), StepSeconds).cpu > 0
        assert len(member.ask(AskDecode(asked[1:] * 3, 5), StepSeconds).steps) == 5
        mixed = member.ask(mixed_question(1, 1_000, 4), Mixed)
        assert len(mixed.alone.steps) == 50 <= len(mixed.both.steps)
        assert mixed.decoded >= 50 * 16
        assert mixed.prompted % 512 == 0 < mixed.prompted
        assert mixed.both.cpu > 0
        kept = member.ask(AskKept(prompts(2, 1_000, (400,))[0]), Kept)
        assert min(kept.none.cpu, kept.cached.cpu, kept.fetched.cpu) > 0
        chosen = member.ask(AskGreedy(asked[0], 3), GreedyTokens)
        assert [int(np.frombuffer(row, np.float32).argmax()) for row in chosen.logits] == chosen.tokens
        with pytest.raises(EngineProcessFailed, match="does not answer AskLayerCost"):
            member.ask(AskLayerCost(8, 1), StepSeconds)
