"""A load that never ran: records and events as the real ones would be, for tests of what is made of them."""

import random

from msgspec.structs import replace

from livescale.load.hardware import Hardware
from livescale.load.outcome import Outcome, StreamsVerdict
from livescale.load.records import RequestRecord
from livescale.load.stats import Period
from livescale.load.story import Story
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import QueueLoad, RouterReport, WorkerReport, WorkerState
from livescale.shared.messages.message import Message
from livescale.shared.messages.scaling import Decision, Phase, ScaleRecord
from livescale.shared.messages.transfers import BlockReady, Flow, InstanceServing, Plan, PlannedInstance, Transfer

START = 1_700_000_000.0
MODEL = "demo"


PHASES = [
    Phase(name="decided", at=START + 20.0),
    *(
        Phase(name=name, at=START + at, node="worker-1")
        for name, at in (("first_byte", 21.2), ("whole", 24.2), ("serving", 24.3), ("first_token", 24.8))
    ),
]


def record(index: int, due: float, ttft: float = 0.1, gap: float = 0.02, tokens: int = 8) -> RequestRecord:
    """A good stream; `due` counts from START."""
    times = [START + due + ttft + gap * token for token in range(tokens)]
    return RequestRecord(
        index=index,
        due=START + due,
        sent=START + due,
        ended=times[-1],
        prompt_tokens=50,
        asked_tokens=tokens,
        id=f"cmpl-{index}",
        status=200,
        finish_reason="length",
        token_ids=list(range(tokens)),
        token_at=times,
    )


def report(worker: str, state: WorkerState) -> WorkerReport:
    if state == "spare":
        return WorkerReport(id=worker, epoch=1, state=state)
    return WorkerReport(id=worker, epoch=1, state=state, model=MODEL, plan_id=f"scale-{worker}")


def decision(at: float, current: int, target: int) -> Decision:
    return Decision(
        id=f"decision-{at:g}",
        model=MODEL,
        at=START + at,
        action="out" if target > current else "in",
        current=current,
        target=target,
        rule="prefill",
        reason=f"queued prefill work asks for {target} instances",
        by="monitor",
    )


def scale(at: float, worker: str, current: int = 1, target: int = 2, phases: list[Phase] | None = None) -> ScaleRecord:
    instance = PlannedInstance(id=f"instance-of-{worker}", ranks=[worker])
    plan = Plan(
        id=f"scale-{worker}",
        model=MODEL,
        version="v1",
        instances=[instance],
        flows=[Flow(sender="worker-0", receiver=worker, ticket=1)],
        size_bytes=1_000,
    )
    return ScaleRecord(
        id=f"scale-{worker}", decision=decision(at, current, target), state="done", plan=plan, phases=phases or []
    )


def block(at: float, worker: str, ready: int, total: int = 12) -> BlockReady:
    return BlockReady(
        worker=worker,
        model=MODEL,
        instance=f"instance-of-{worker}",
        plan_id=f"scale-{worker}",
        index=ready - 1,
        ready=ready,
        total=total,
        at=START + at,
    )


def served(at: float, worker: str, what: str) -> InstanceServing:
    return InstanceServing(
        instance=f"instance-of-{worker}",
        model=MODEL,
        worker=worker,
        plan_id=f"scale-{worker}",
        what=what,  # type: ignore[arg-type]
        at=START + at,
    )


def whole(at: float, worker: str) -> Transfer:
    return Transfer(plan_id=f"scale-{worker}", node=worker, state="whole", at=START + at, first_byte_at=START + at - 3)


def live_scale() -> list[tuple[float, Message]]:
    """A live scale: worker-1 joins at 20 s, has its first layer at 21.0 s and runs it at 21.1 s. Worker-0 takes
    requests 44 and 45 over; of the first one no layer was run."""
    live = [Phase(name=name, at=START + at, node="worker-1") for name, at in (("live", 21.0), ("first_layer", 21.1))]
    before = [event for event in scale_out_and_in() if not isinstance(event[1], ScaleRecord)]
    told: list[tuple[float, Message]] = [
        *before,
        (20.3, replace(report("worker-1", "live"), live_waiting=3)),
        *((21.5, handed_over(f"req-{index}", layers)) for index, layers in ((44, 0), (45, 1))),
        (25.0, scale(20.0, "worker-1", phases=[*PHASES, *live])),
    ]
    return sorted(told, key=lambda item: item[0])


def handed_over(request_id: str, layers: int) -> RequestsMoved:
    return RequestsMoved(worker="worker-0", previous="worker-1", request_ids=[request_id], layers=layers)


def scale_out_and_in() -> list[tuple[float, Message]]:
    """One worker serves, a second joins at 20 s and leaves at 50 s."""
    told: list[tuple[float, Message]] = [
        (-1.0, report("worker-0", "serving")),
        (-1.0, report("worker-1", "spare")),
        (20.0, decision(20.0, 1, 2)),
        (20.1, scale(20.0, "worker-1")),
        (20.2, report("worker-1", "loading")),
        *((20.5 + n * 0.3, block(20.5 + n * 0.3, "worker-1", n)) for n in range(1, 13)),
        (24.2, whole(24.2, "worker-1")),
        (24.3, served(24.3, "worker-1", "serving")),
        (24.3, report("worker-1", "serving")),
        (24.8, served(24.8, "worker-1", "first_token")),
        (24.9, scale(20.0, "worker-1", phases=PHASES)),
        (50.0, decision(50.0, 2, 1)),
        (50.1, report("worker-1", "draining")),
        (51.0, report("worker-1", "spare")),
        *((at, RouterReport(id="router-0", epoch=1, queues=[queue(3)])) for at in (29.0, 30.0)),
    ]
    return sorted(told, key=lambda item: item[0])


def queue(waiting: int) -> QueueLoad:
    return QueueLoad(model=MODEL, waiting_requests=waiting, waiting_tokens=100, oldest_seconds=0.5, running=4)


def told(events: list[tuple[float, Message]]) -> Story:
    story = Story(MODEL)
    for at, message in events:
        story.on_message(message, START + at)
    return story


def outcome(events: list[tuple[float, Message]] | None = None) -> Outcome:
    chance = random.Random(1)
    dues = [t * 0.8 for t in range(20)] + [16 + t * 0.2 for t in range(100)] + [36 + t * 0.8 for t in range(30)]
    records = [record(n, due, chance.uniform(0.05, 1.5), chance.uniform(0.01, 0.05)) for n, due in enumerate(dues)]
    return Outcome(
        start=START,
        end=START + 62,
        periods=[
            Period("before", START, START + 16),
            Period("burst", START + 16, START + 36),
            Period("after", START + 36, START + 60),
        ],
        records=records,
        story=told(events or scale_out_and_in()),
        verdict=StreamsVerdict(
            streams=150,
            faults=[],
            tokens=1200,
            wrong=[],
            ties=0,
            ties_allowed=1,
            criterion="Right: each token is the reference's argmax.",
        ),
        hardware=Hardware(cpu="AMD EPYC", cores=2, flags=["avx2"], stolen=0.0),
        incidents=[],
        prefill_seconds=0.2,
        settings={"seed": "0", "link-rate": "100 MB/s", "command": "livescale demo --trace <a & b>.csv"},
    )
