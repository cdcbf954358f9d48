"""Registry, router, planner and monitor under hostile messages: none dies, nothing hangs, no answer is a 500."""

import asyncio
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared import subjects
from livescale.shared.bus.contract import Call, Topic
from livescale.shared.messages.registry import Snapshot
from livescale.shared.simulation import virtual_time
from tests.control.control_plane import ControlPlane, control_plane
from tests.fuzz.effort import examples
from tests.fuzz.hostile import KNOWN, Shot, codes, fire, shots

# The rest is for gateways, workers and hosts, which are not real here. A router that is told it is stale is right to
# end.
HEARD = ("svc.", "evt.", "hb.", "req.")
TARGETS: list[Topic[Any] | Call[Any, Any]] = [
    one
    for one in vars(subjects).values()
    if isinstance(one, Topic | Call) and one.pattern.startswith(HEARD) and one is not subjects.VOCABULARY
]
IDS = ["worker", "router", "nobody", *KNOWN]


@examples(4)
@given(st.lists(shots(TARGETS, IDS), min_size=8, max_size=24))
def test_whatever_is_said_to_it_the_control_plane_lives_and_answers(fired: list[Shot]) -> None:
    async def main() -> None:
        async with control_plane() as plane:
            answers = [fire(plane.broker, shot) for shot in fired]
            asked = [answer for shot, answer in zip(fired, answers, strict=True) if shot.answered]
            for _ in range(14):  # longer than any deadline of a call
                await asyncio.sleep(5.0)
                if all(asked):
                    break
            assert all(len(answer) == 1 for answer in asked)
            assert "500" not in codes(answers)
            assert not [name for name, task in plane.tasks.items() if task.done()]
            await plane.snapshot()
            await plane.decisions()
            await plane.records()

    virtual_time.run(main(), limit_seconds=300)


def malformed(shot: Shot) -> bool:
    target = next(one for one in TARGETS if matches(one.pattern, shot.subject))
    kind = target.request if isinstance(target, Call) else target.type
    decoder = msgspec.json.decode if shot.json else msgspec.msgpack.decode
    try:
        decoder(shot.data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return True
    return False


def matches(pattern: str, subject: str) -> bool:
    pairs = list(zip(pattern.split("."), subject.split("."), strict=False))
    return pattern.count(".") == subject.count(".") and all(one.startswith("{") or one == other for one, other in pairs)


@examples(4)
@given(st.lists(shots(TARGETS, IDS).filter(malformed), min_size=8, max_size=24))
def test_what_is_malformed_is_refused_or_counted_and_changes_nothing(fired: list[Shot]) -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await asyncio.sleep(5.0)
            before, counted = lasting(await plane.snapshot()), undecodable(plane)
            answers = [fire(plane.broker, shot) for shot in fired]
            await asyncio.sleep(5.0)
            assert codes(answers) <= {"400"}
            assert all(len(answer) == 1 for shot, answer in zip(fired, answers, strict=True) if shot.answered)
            assert undecodable(plane) - counted >= sum(shot.subject.startswith(("hb.", "req.")) for shot in fired)
            assert lasting(await plane.snapshot()) == before
            await plane.gateway.submit("r-after", max_tokens=3)
            await asyncio.sleep(2.0)
            assert plane.gateway.finished["r-after"] == "length"

    virtual_time.run(main(), limit_seconds=100)


def undecodable(plane: ControlPlane) -> int:
    return sum(bus.counts["undecodable"] for bus in plane.broker.buses)


def lasting(snapshot: Snapshot) -> Any:
    return snapshot.members, snapshot.models, [(one.id, one.epoch, one.state) for one in snapshot.workers]
