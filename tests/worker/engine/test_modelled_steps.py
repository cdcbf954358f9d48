"""Times of steps: chunks add up to prompts, layers to steps. Tokens that end answers."""

import pytest
from msgspec.structs import replace

from livescale.services.worker.engine.modelled_steps import (
    choose_token,
    embedding_seconds,
    layer_seconds,
    step_seconds,
    work_of,
)
from livescale.services.worker.scheduling.batch import NO_BYTES, Batch, LayerEntry, ScheduledChunk, TokenSampling
from livescale.shared.messages.requests import Sampling
from livescale.shared.model.latency import HEAD_SHARE, Latency, Work

LATENCY = Latency(source="made up", prefill=(10.0, 0.1, 1e-5), decode=(20.0, 0.5, 1e-3))
LAYERS = 4


def chunk(start: int, stop: int, layer: int = 0) -> ScheduledChunk:
    entry = LayerEntry(layer, stop, NO_BYTES) if layer else None
    return ScheduledChunk("a", (1,) * (stop - start), start, range(0, 64), False, entry=entry)


def decode(start: int, rows: int = 1) -> ScheduledChunk:
    return ScheduledChunk("b", (1,) * rows, start, range(64, 128), True)


def test_the_chunks_of_a_prompt_add_up_to_the_prompt() -> None:
    assert work_of([chunk(0, 128), chunk(128, 256), chunk(256, 300)]) == Work(300, 300**2)


def test_a_row_that_decodes_attends_to_itself_and_all_before_it() -> None:
    assert work_of([decode(99)]) == Work(decode_rows=1, decode_kv_tokens=100)
    assert work_of([decode(9, rows=3)]) == Work(decode_rows=3, decode_kv_tokens=10 + 11 + 12)


@pytest.mark.parametrize("chunks", [[chunk(0, 128)], [decode(99)], [chunk(0, 128), decode(99)]])
def test_embedding_layers_and_head_add_up_to_the_step(chunks: list[ScheduledChunk]) -> None:
    whole = LATENCY.seconds(work_of(chunks))
    parts = embedding_seconds(LATENCY, chunks) + LAYERS * layer_seconds(LATENCY, chunks, LAYERS) + HEAD_SHARE * whole
    assert parts == pytest.approx(whole)
    assert step_seconds(LATENCY, Batch(1, tuple(chunks)), LAYERS) == pytest.approx(whole)


def test_a_piece_pays_for_the_layers_that_are_left_of_it() -> None:
    early, late = decode(99), chunk(0, 128, layer=3)
    seconds = step_seconds(LATENCY, Batch(1, (early, late)), LAYERS)
    expected = (
        embedding_seconds(LATENCY, [early])
        + 3 * layer_seconds(LATENCY, [early], LAYERS)
        + layer_seconds(LATENCY, [early, late], LAYERS)
        + HEAD_SHARE * LATENCY.seconds(work_of([early, late]))
    )
    assert seconds == pytest.approx(expected)
    assert seconds < step_seconds(LATENCY, Batch(1, (early, chunk(0, 128))), LAYERS)


def test_a_request_with_all_layers_behind_it_pays_for_the_head() -> None:
    whole = LATENCY.seconds(work_of([chunk(0, 128)]))
    assert step_seconds(LATENCY, Batch(1, (chunk(0, 128, layer=LAYERS),)), LAYERS) == pytest.approx(HEAD_SHARE * whole)


def test_a_token_ends_an_answer_only_where_answers_may_end() -> None:
    free = choose_token(1, TokenSampling(Sampling(temperature=0.0), 0), 100)
    stops = TokenSampling(Sampling(temperature=0.0), 0, stops=(free,))
    assert choose_token(1, stops, 100) != free
    assert choose_token(1, stops, 100, ends=True) == free
    assert choose_token(1, replace(stops, forbidden=(free,)), 100, ends=True) != free
