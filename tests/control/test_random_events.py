"""Whatever happens in whatever order: every stream is whole, and the control plane comes to rest.

A sequence that fails is printed, the shortest that does; it and its seed make the same run again.
"""

import asyncio
from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

from shared import virtual_time
from shared.messages.membership import AskSnapshot, Register
from shared.subjects import REGISTER, SNAPSHOT
from tests.control.fakes import FakeWorker
from tests.control.plane import spec
from tests.control.storm import Storm
from tests.fuzz.effort import examples

WORKERS = ("worker-0", "worker-1", "worker-2", "worker-3")
GATEWAYS = ("gateway-0", "gateway-1")
OTHERS = ("registry-0", "router-0", "router-1", "planner-0", "monitor-0", "host-0", "host-1")
EVERYBODY = (*WORKERS, *GATEWAYS, *OTHERS)
RECOVERY_SECONDS = 90.0

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
        await asyncio.sleep(RECOVERY_SECONDS)
        await look(storm)
    finally:
        await storm.end()
    return storm


async def look(storm: Storm) -> None:
    """What has to be true when the storm is over."""
    snapshot = await storm.operator.call(SNAPSHOT, AskSnapshot(), timeout=5.0)
    alive = sorted(member.id for member in snapshot.members if member.lease == "alive")
    if alive != sorted(EVERYBODY):
        storm.trouble.append(f"alive are {alive}")
    states = {name: actor.state for name, actor in storm.running.items() if isinstance(actor, FakeWorker)}
    if not set(states.values()) <= {"serving", "spare"} or "serving" not in states.values():
        storm.trouble.append(f"workers did not come to rest: {states}")
    told = {worker.id: worker.state for worker in snapshot.workers}
    if told != states:
        storm.trouble.append(f"the registry thinks {told}, workers are {states}")
    for ask in storm.asks:
        right = list(range(1, ask.max_tokens + 1))
        if ask.tokens != right[: len(ask.tokens)]:
            storm.trouble.append(f"request {ask.number} got {ask.tokens}")
        if ask.outcome not in ("complete", "left", "broken") or (ask.outcome == "complete" and ask.tokens != right):
            storm.trouble.append(f"request {ask.number} has {len(ask.tokens)} of {ask.max_tokens}: {ask.outcome}")


@examples(20)
@given(st.integers(0, 2**32), sequences)
def test_after_any_sequence_of_events_every_stream_is_whole(
    seed: int, sequence: list[tuple[float, tuple[Any, ...]]]
) -> None:
    storm = virtual_time.run(weather(seed, sequence), limit_seconds=1000)
    for trouble in storm.trouble[:10]:
        note(trouble)
    assert storm.trouble == []
