"""Layers run one at a time, and rows that come in at any of them, give the bits of one whole step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.worker.engine.contract import LayerwiseRun, slabs
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.scheduling.batch import MAX_BATCH_ROWS, LayerEntry
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.messages.parameters import DType
from livescale.shared.messages.requests import Submit
from tests.fuzz.effort import examples
from tests.worker.engine.models import checkpointed
from tests.worker.requests import limits, random_prompt, submit
from tests.worker.serving import serve

NAME = "qwen2-tied"
LAYERS = 3


def scheduler(engine: TorchEngine) -> Scheduler:
    return Scheduler(limits(kv_blocks=engine.store.blocks))


def part_of_the_way(engine: TorchEngine, request: Submit, layers: int, most_rows: int) -> tuple[LayerEntry, memoryview]:
    """What a target hands over: the activation and the KV of the layers done."""
    made = scheduler(engine)
    made.add(request)
    (sequence,) = made.start()
    partial = LayerwiseRun(list(sequence.rest(most_rows)))
    for _ in range(layers):
        engine.run_layer([partial])
    kv = engine.store.export_kv(sequence.blocks, range(layers))
    return LayerEntry(partial.done, len(sequence.tokens), partial.activation), memoryview(bytearray(kv))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_requests_that_come_in_at_every_layer_of_one_step_get_the_same_tokens(dtype: DType) -> None:
    target, source = checkpointed(NAME, dtype).engine(), checkpointed(NAME, dtype).engine()
    requests = {
        layers: submit(f"r{layers}", random_prompt(layers, 90 + 60 * layers), max_tokens=9)
        for layers in range(LAYERS + 1)
    }
    requests[2] = submit("r2", requests[2].prompt, generated=[5, 6, 7, 8, 9], max_tokens=14)
    made, tokens = scheduler(source), {request.request_id: list[int]() for request in requests.values()}
    late = {}
    for layers, request in requests.items():
        if layers == 0:
            made.add(request)
            continue
        entry, kv = part_of_the_way(target, request, layers, most_rows=144)
        late[request.request_id] = made.adopt(request, entry), kv
    while (batch := made.next_batch()) is not None:
        for output in made.complete(batch, source.step(batch), 0.0):
            tokens[output.row.request_id] += output.row.token_ids
        for id, (name, kv) in late.items():
            assert name is not None
            made.kv_came(id, name, kv)
    for request in requests.values():
        assert tokens[request.request_id] == serve(source, [(0, request)]).tokens[request.request_id]


def computed(engine: TorchEngine, requests: list[Submit], turns: list[set[int]]) -> list[tuple[bytes, bytes]]:
    """Activation and KV of each after all layers. In a turn so many are run on, those at the same layer together."""
    made = scheduler(engine)
    for request in requests:
        made.add(request)
    sequences = made.start()
    partials = [LayerwiseRun(list(sequence.rest(MAX_BATCH_ROWS))) for sequence in sequences]
    for turn in turns:
        chosen = [partials[number] for number in sorted(turn) if number < len(partials)]
        for layer in reversed(range(LAYERS)):
            if joined := [partial for partial in chosen if partial.done == layer]:
                engine.run_layer(joined)
    assert all(partial.done == LAYERS for partial in partials)
    kv = [engine.store.export_kv(sequence.blocks, range(LAYERS)) for sequence in sequences]
    return [(bytes(partial.activation), bytes(each)) for partial, each in zip(partials, kv, strict=True)]


@examples(8)
@given(
    prompts=st.lists(st.integers(1, 300), min_size=2, max_size=5),
    generated=st.integers(0, 20),
    turns=st.lists(st.sets(st.integers(0, 4)), max_size=6),
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layers_of_requests_that_run_together_have_the_bits_that_they_have_alone(
    dtype: DType, prompts: list[int], generated: int, turns: list[set[int]]
) -> None:
    requests = [
        submit(f"r{number}", random_prompt(number, rows), generated=range(3, 3 + generated), max_tokens=50)
        for number, rows in enumerate(prompts)
    ]
    everybody = set(range(len(requests)))
    together = computed(checkpointed(NAME, dtype).engine(), requests, [*turns, *[everybody] * LAYERS])
    alone = [{number} for number in sorted(everybody)]
    assert together == computed(checkpointed(NAME, dtype).engine(), requests, alone * LAYERS)


def test_no_more_rows_run_together_than_a_batch_may_have_and_those_of_a_request_stay_in_order() -> None:
    made = Scheduler(limits())
    for number in range(3):
        made.add(submit(f"r{number}", random_prompt(number, 900)))
    partials = [LayerwiseRun(list(each.rest(MAX_BATCH_ROWS))) for each in made.start()]
    run = list(slabs(partials, row_bytes=4))
    assert [sum(len(piece.tokens) for piece in slab.chunks) for slab in run] == [1_928, 772]
    starts = [(piece.request_id, piece.start) for slab in run for piece in slab.chunks]
    assert starts == [(f"r{number}", start) for number in range(3) for start in range(0, 900, 128)]
    assert sum(len(data) for slab in run for data in slab.activations) == 4 * 2_700


def test_requests_at_different_layers_do_not_run_together() -> None:
    engine = checkpointed(NAME).engine()
    made = scheduler(engine)
    for name in "ab":
        made.add(submit(name))
    first, second = (LayerwiseRun(list(each.rest(MAX_BATCH_ROWS))) for each in made.start())
    engine.run_layer([first])
    with pytest.raises(ValueError, match=r"layers \[1, 0\] are next: only one can be run"):
        engine.run_layer([first, second])
