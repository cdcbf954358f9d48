"""Layers run one at a time, and rows that come in at any of them, give the bits of one whole step."""

import pytest

from services.worker.batch import Entry
from services.worker.engine.engine import Engine
from services.worker.scheduler import Scheduler
from shared.messages.parameters import DType
from shared.messages.requests import Submit
from tests.worker.engine.models import checkpointed
from tests.worker.serving import limits, random_prompt, serve, submit

NAME = "qwen2-tied"
LAYERS = 3


def scheduler(engine: Engine) -> Scheduler:
    return Scheduler(limits(kv_blocks=engine.store.blocks))


def part_of_the_way(engine: Engine, request: Submit, layers: int, most_rows: int) -> tuple[Entry, memoryview]:
    """What a target hands over: the activation and the KV of the layers done."""
    made = scheduler(engine)
    made.add(request)
    (sequence,) = made.start()
    partial = engine.begin(list(sequence.slabs(most_rows)))
    for _ in range(layers):
        engine.run_layer(partial)
    kv = engine.store.export_kv(sequence.blocks, range(layers))
    return Entry(partial.done, len(sequence.tokens), partial.activation), memoryview(bytearray(kv))


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
