"""Attention with a window, another factor of scores, a limit of them or sinks, against its definition in float64."""

from itertools import product

import pytest
import torch

from livescale.services.worker.engine.masked_attention import Masking, attend_masked, attends_plainly
from livescale.shared.messages.parameters import LayerKind

TOKENS, HEADS, DIM = 53, 2, 8
KINDS = [
    LayerKind(window=window, attention_scale=scale, score_cap=cap)
    for window, scale, cap in product((0, 1, 7, 16, 40), (0.0, 0.3), (0.0, 2.0))
]


def numbers(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(HEADS, rows, DIM, generator=torch.Generator().manual_seed(seed))


def defined(
    masking: Masking, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: range
) -> torch.Tensor:
    """Attention as papers write it: each row by itself, over the tokens that it sees. A sink takes its share."""
    kind, rows = masking.kind, []
    for place, position in enumerate(positions):
        first = max(0, position + 1 - kind.window) if kind.window else 0
        seen = keys[:, first : position + 1].double()
        scores = (seen @ queries[:, place].double().unsqueeze(-1)).squeeze(-1)
        scores = scores * (kind.attention_scale or DIM**-0.5)
        if kind.score_cap:
            scores = kind.score_cap * (scores / kind.score_cap).tanh()
        if masking.sinks is not None:
            scores = torch.cat((scores, masking.sinks[:, 0].double()), dim=-1)
        weights = scores.softmax(-1)[:, : seen.shape[1]]
        rows.append((weights.unsqueeze(1) @ values[:, first : position + 1].double()).squeeze(1))
    return torch.stack(rows, dim=1).float()


@pytest.mark.parametrize("positions", [range(8), range(16, 24), range(45, 53), range(52, 53), range(TOKENS)])
def test_rows_see_what_their_kind_of_layer_says(positions: range) -> None:
    keys, values, queries = numbers(positions.stop, 1), numbers(positions.stop, 2), numbers(len(positions), 3)
    sinks = torch.tensor([0.5, -1.0]).view(HEADS, 1, 1)
    for masking in (Masking(kind, sink) for kind in KINDS for sink in (None, sinks)):
        made = attend_masked(masking, queries, keys, values, positions)
        torch.testing.assert_close(made, defined(masking, queries, keys, values, positions), rtol=1e-4, atol=1e-5)


def test_what_a_window_hides_changes_no_bit() -> None:
    keys, values, queries = numbers(TOKENS, 1), numbers(TOKENS, 2), numbers(4, 3)
    for kind in (LayerKind(window=7), LayerKind(window=7, score_cap=2.0)):
        before = attend_masked(Masking(kind), queries, keys, values, range(49, 53))
        others = keys.clone(), values.clone()
        for tensor in others:
            tensor[:, : 49 + 1 - 7] = 5.0
        assert torch.equal(attend_masked(Masking(kind), queries, *others, range(49, 53)), before)


def test_only_a_layer_like_llamas_attends_plainly() -> None:
    assert attends_plainly(LayerKind())
    assert not attends_plainly(LayerKind(sinks=True))
    assert [kind for kind in KINDS if attends_plainly(kind)] == [LayerKind()]
