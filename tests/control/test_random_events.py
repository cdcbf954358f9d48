"""Whatever happens in whatever order: every stream is whole, and the control plane comes to rest.

A sequence that fails is made as short as can be and printed with its seed: both as an `@example` make the same run.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
from hypothesis import example, given, note
from hypothesis import strategies as st
from structlog.testing import capture_logs

from livescale.shared.bus.contract import BusError
from livescale.shared.messages.registry import AskSnapshot, Register
from livescale.shared.runtime.settings import LiveName
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import REGISTER, SNAPSHOT
from tests.control.control_plane import spec
from tests.control.disturbed_plane import DisturbedPlane
from tests.control.fake_worker import FakeWorker
from tests.control.headless_gateway import Ask
from tests.fuzz.effort import examples

WORKERS = ("worker-0", "worker-1", "worker-2", "worker-3")
GATEWAYS = ("gateway-0", "gateway-1")
OTHERS = ("registry-0", "router-0", "router-1", "planner-0", "monitor-0", "host-0", "host-1")
EVERYBODY = (*WORKERS, *GATEWAYS, *OTHERS)
MINIMUM = {"m": 1, "n": 0}  # numbers of instances; n sleeps without requests
LOOK_SECONDS, RECOVERY_LOOKS = 1.0, 120

Happening = tuple[str, tuple[Any, ...], dict[str, Any]]
Sequence = list[tuple[float, Happening]]


def happening(what: str, *how: st.SearchStrategy[Any], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Happening]:
    return st.tuples(st.just(what), st.tuples(*how), st.fixed_dictionaries(more))


names = st.sampled_from([*WORKERS, *EVERYBODY])
workers, gateways, models = st.sampled_from(WORKERS), st.sampled_from(GATEWAYS), st.sampled_from(sorted(MINIMUM))
seen_faults = st.one_of(
    happening("ask", gateways, models, st.integers(1, 150)),
    happening("ask", gateways, models, st.just(60), count=st.integers(2, 12)),
    happening("ask", gateways, models, st.integers(1, 400), seconds=st.floats(0.1, 8.0)),
    happening("leave", st.integers(0, 40)),
    happening("kill", names),
    happening("stop", names),
    happening("freeze", names, st.floats(0.1, 6.0)),
    happening("stall", st.floats(0.1, 6.0)),
    happening("part", names, st.floats(0.1, 6.0)),
    happening("outage", st.floats(0.1, 5.0)),
    happening("scale", models, st.integers(0, 4)),
    happening("hurt", workers, block_seconds=st.floats(0.1, 1.0)),
    happening("hurt", workers, strand_after_blocks=st.integers(0, 3)),
    happening("hurt", workers, break_after_blocks=st.integers(0, 3)),
    happening("hurt", workers, stall_after_blocks=st.integers(0, 3)),
    happening("hurt", workers, refuse_pipelines=st.booleans()),
    happening("hurt", workers, refuse_loads=st.booleans(), refuse_admissions=st.integers(0, 3)),
    happening("disturb", st.floats(0.0, 0.05), st.floats(0.0, 0.3), st.floats(0.0, 0.1)),
    happening("calm"),
)
# Most things happen close to each other: in the middle of what the ones before have set going.
pauses = st.one_of(st.floats(0.0, 0.2), st.floats(0.0, 0.5), st.floats(0.0, 2.0))
sequences: st.SearchStrategy[Sequence] = st.lists(st.tuples(pauses, seen_faults), min_size=8, max_size=30)


@pytest.fixture(autouse=True)
def errors() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged as an error. All the rest would be millions of lines."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with capture_logs() as errors:
        yield errors
    structlog.reset_defaults()


async def weather(seed: int, sequence: Sequence, live: LiveName = "off") -> DisturbedPlane:
    """Everything up and one instance serving, then the sequence, then time to recover."""
    disturbed = DisturbedPlane(seed, live)
    try:
        disturbed.start(*EVERYBODY)
        await asyncio.sleep(1.0)
        for model, instances in MINIMUM.items():
            made = spec(model, min_instances=instances, downscale_delay_s=0.5, downscale_to_zero_delay_s=1.0)
            await disturbed.operator.call(REGISTER, Register(spec=made), timeout=5.0)
        await asyncio.sleep(1.0)
        if live == "pipeline":  # needs several targets at once, and blocks that take a while
            for worker in WORKERS:
                disturbed.hurt(worker, block_seconds=0.5)
            disturbed.scale("m", 4)
        for seconds, (what, how, more) in sequence:
            await asyncio.sleep(seconds)
            getattr(disturbed, what)(*how, **more)
        disturbed.calm()
        disturbed.trouble += await recovered(disturbed)
    finally:
        await disturbed.end()
    return disturbed


async def recovered(disturbed: DisturbedPlane) -> list[str]:
    """What is still wrong when the disturbance has been over for long; empty as soon as nothing is."""
    wrong = ["nobody looked"]
    for _ in range(RECOVERY_LOOKS):
        await asyncio.sleep(LOOK_SECONDS)
        wrong = [*await unrest(disturbed), *incomplete(disturbed.asks)]
        if not wrong:
            break
    return wrong


async def unrest(disturbed: DisturbedPlane) -> list[str]:
    try:
        snapshot = await disturbed.operator.call(SNAPSHOT, AskSnapshot(), timeout=LOOK_SECONDS)
    except BusError as error:
        return [f"the registry does not answer: {error}"]
    alive = {member.id for member in snapshot.members if member.lease == "alive"}
    workers = {name: actor for name, actor in disturbed.running.items() if isinstance(actor, FakeWorker)}
    states = {name: worker.state for name, worker in workers.items()}
    serving = Counter(worker.order.model for worker in workers.values() if worker.order is not None)
    told = {worker.id: worker.state for worker in snapshot.workers}
    rules = (
        (alive == set(EVERYBODY), f"alive are {sorted(alive)}"),
        (told == states, f"the registry thinks {told}, workers are {states}"),
        (set(states.values()) <= {"serving", "spare"}, f"workers did not come to rest: {states}"),
        (serving == Counter(MINIMUM), f"no load, and other than the minimum serves: {serving}"),
    )
    return [wrong for holds, wrong in rules if not holds]


def incomplete(asks: list[Ask]) -> list[str]:
    """Return the streams that are incomplete without a reason. A client that left, a dead gateway and a passed deadline
    are reasons; wrong tokens never have one."""
    wrong = []
    for ask in asks:
        right = list(range(1, ask.max_tokens + 1))
        if ask.tokens != right[: len(ask.tokens)]:
            wrong.append(f"request {ask.number} got {ask.tokens}")
        if ask.outcome not in ("complete", "left", "broken", "late") or (
            ask.outcome == "complete" and ask.tokens != right
        ):
            wrong.append(f"request {ask.number} has {len(ask.tokens)} of {ask.max_tokens}: {ask.outcome}")
    return wrong


# A registry that was cut off lost the message that a host had read the models, and did not ask again.
READ_WHILE_CUT_OFF: Sequence = [
    (0.05, ("ask", ("gateway-0", "m", 117), {"count": 6})),
    (0.19, ("disturb", (0.02, 0.16, 0.0), {})),
    (0.0, ("kill", ("registry-0",), {})),
    (0.08, ("calm", (), {})),
    (2.2, ("ask", ("gateway-0", "m", 1), {})),
    (0.33, ("part", ("registry-0", 1.15), {})),
]


# A router that was killed took a request while it came to its end, noticed that it had slept, and could ask nobody any
# more whether it was still in office.
ASKED_AT_ITS_END: Sequence = [
    (0.0, ("leave", (0,), {})),
    (0.0, ("part", ("router-0", 2.0), {})),
    (0.0, ("ask", ("gateway-0", "m", 1), {})),
    (1.0, ("ask", ("gateway-0", "m", 1), {})),
    (0.0, ("kill", ("router-0",), {})),
    (0.0, ("stall", (2.0,), {})),
    (0.0, ("ask", ("gateway-0", "m", 1), {})),
    (0.0, ("ask", ("gateway-0", "m", 1), {})),
]


@examples(45, shrinks=True)
@example(0, ASKED_AT_ITS_END, "off")
@example(9311, READ_WHILE_CUT_OFF, "off")
@given(st.integers(0, 2**32), sequences, st.sampled_from(["off", "zigzag", "pipeline"]))
def test_after_any_sequence_of_events_every_stream_is_whole(
    errors: list[MutableMapping[str, Any]], seed: int, sequence: Sequence, live: LiveName
) -> None:
    errors.clear()
    disturbed = virtual_time.run(weather(seed, sequence, live), limit_seconds=1000)
    troubles = [*disturbed.trouble, *(str(error) for error in errors if error["event"] == "handler_failed")]
    for trouble in troubles[:10]:
        note(trouble)
    assert troubles == []


def test_a_seed_and_a_sequence_make_the_same_run_every_time() -> None:
    sequence: Sequence = [
        (0.1, ("ask", ("gateway-0", "m", 60), {"count": 9})),
        (0.1, ("disturb", (0.05, 0.3, 0.1), {})),
        (0.2, ("kill", ("worker-1",), {})),
        (0.1, ("scale", ("n", 2), {})),
        (0.1, ("part", ("registry-0", 2.0), {})),
        (0.3, ("outage", (1.0,), {})),
        (0.5, ("stop", ("router-0",), {})),
    ]
    first, again, other = (virtual_time.run(weather(seed, sequence), limit_seconds=1000) for seed in (3, 3, 4))
    assert (first.messages, first.epochs, first.asks) == (again.messages, again.epochs, again.asks)
    assert first.messages != other.messages
