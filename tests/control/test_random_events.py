"""Whatever happens in whatever order: every stream is whole, and the control plane comes to rest.

A sequence that fails is printed, the shortest that does; it and its seed make the same run again.
"""

import asyncio
from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

from shared import virtual_time
from shared.bus.contract import BusError
from shared.messages.membership import AskSnapshot, Register
from shared.subjects import REGISTER, SNAPSHOT
from tests.control.door import Ask
from tests.control.fakes import FakeWorker
from tests.control.plane import spec
from tests.control.storm import Storm
from tests.fuzz.effort import examples

WORKERS = ("worker-0", "worker-1", "worker-2", "worker-3")
GATEWAYS = ("gateway-0", "gateway-1")
OTHERS = ("registry-0", "router-0", "router-1", "planner-0", "monitor-0", "host-0", "host-1")
EVERYBODY = (*WORKERS, *GATEWAYS, *OTHERS)
LOOK_SECONDS, RECOVERY_LOOKS = 5.0, 24

names = st.sampled_from([*WORKERS, *EVERYBODY])
happenings = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from(GATEWAYS), st.integers(1, 150)),
    st.tuples(st.just("ask_many"), st.sampled_from(GATEWAYS), st.integers(2, 12)),
    st.tuples(st.just("leave"), st.integers(0, 40)),
    st.tuples(st.just("kill"), names),
    st.tuples(st.just("freeze"), names, st.floats(0.1, 10.0)),
    st.tuples(st.just("outage"), st.floats(0.1, 6.0)),
    st.tuples(st.just("scale"), st.integers(1, 4)),
    st.tuples(st.just("disturb"), st.floats(0.0, 0.05), st.floats(0.0, 0.3), st.floats(0.0, 0.1)),
    st.tuples(st.just("calm")),
)
sequences = st.lists(st.tuples(st.floats(0.0, 3.0), happenings), min_size=10, max_size=40)


async def weather(seed: int, sequence: list[tuple[float, tuple[Any, ...]]]) -> Storm:
    """Everything up and one instance serving, then the sequence, then time to recover."""
    storm = Storm(seed)
    try:
        storm.start(*EVERYBODY)
        await asyncio.sleep(1.0)
        await storm.operator.call(REGISTER, Register(spec=spec()), timeout=5.0)
        await asyncio.sleep(2.0)
        for seconds, happening in sequence:
            await asyncio.sleep(seconds)
            what, *how = happening
            getattr(storm, what)(*how)
        storm.calm()
        storm.trouble += await recovered(storm)
    finally:
        await storm.end()
    return storm


async def recovered(storm: Storm) -> list[str]:
    """What is still wrong when the storm has been over for long; empty as soon as nothing is."""
    wrong = ["nobody looked"]
    for _ in range(RECOVERY_LOOKS):
        await asyncio.sleep(LOOK_SECONDS)
        wrong = [*await unrest(storm), *incomplete(storm.asks)]
        if not wrong:
            break
    return wrong


async def unrest(storm: Storm) -> list[str]:
    try:
        snapshot = await storm.operator.call(SNAPSHOT, AskSnapshot(), timeout=LOOK_SECONDS)
    except BusError as error:
        return [f"the registry does not answer: {error}"]
    alive = {member.id for member in snapshot.members if member.lease == "alive"}
    states = {name: actor.state for name, actor in storm.running.items() if isinstance(actor, FakeWorker)}
    told = {worker.id: worker.state for worker in snapshot.workers}
    rules = (
        (alive == set(EVERYBODY), f"alive are {sorted(alive)}"),
        (told == states, f"the registry thinks {told}, workers are {states}"),
        (set(states.values()) == {"serving", "spare"}, f"workers did not come to rest: {states}"),
        (list(states.values()).count("serving") == 1, f"no load, and more than the minimum serves: {states}"),
    )
    return [wrong for holds, wrong in rules if not holds]


def incomplete(asks: list[Ask]) -> list[str]:
    """Who left, and whose gateway died, have no claim to the rest; nobody gets a wrong token."""
    wrong = []
    for ask in asks:
        right = list(range(1, ask.max_tokens + 1))
        if ask.tokens != right[: len(ask.tokens)]:
            wrong.append(f"request {ask.number} got {ask.tokens}")
        if ask.outcome not in ("complete", "left", "broken") or (ask.outcome == "complete" and ask.tokens != right):
            wrong.append(f"request {ask.number} has {len(ask.tokens)} of {ask.max_tokens}: {ask.outcome}")
    return wrong


@examples(60)
@given(st.integers(0, 2**32), sequences)
def test_after_any_sequence_of_events_every_stream_is_whole(
    seed: int, sequence: list[tuple[float, tuple[Any, ...]]]
) -> None:
    storm = virtual_time.run(weather(seed, sequence), limit_seconds=1000)
    for trouble in storm.trouble[:10]:
        note(trouble)
    assert storm.trouble == []
