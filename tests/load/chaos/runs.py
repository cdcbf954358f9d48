from livescale.load.chaos.client import CutStream
from livescale.load.chaos.faults import SeenFault
from livescale.load.chaos.page import render_report
from livescale.load.chaos.report import ChaosReport, ChaosRun, make_report
from livescale.load.chaos.schedule import Fault
from livescale.load.records import RequestRecord
from livescale.load.story import Story
from livescale.shared.messages.membership import LeaseChanged


def record(index: int = 0, tokens: tuple[int, ...] = (1, 2, 3), *, due: float = 0.0, asked: int = 3) -> RequestRecord:
    """A token a second from `due` on, but two seconds before the last."""
    at = [due + 1.0 + place for place in range(len(tokens))]
    at[-1:] = [at[-1] + 1.0] if at else []
    return RequestRecord(
        index=index,
        due=due,
        sent=due,
        ended=at[-1] if at else due,
        prompt_tokens=1,
        asked_tokens=asked,
        status=200,
        finish_reason="length",
        token_ids=list(tokens),
        token_at=at,
    )


def ran(
    *records: RequestRecord,
    cuts: tuple[CutStream, ...] = (),
    faults: tuple[SeenFault, ...] = (),
    story: Story | None = None,
    not_whole: tuple[str, ...] = (),
    left: tuple[str, ...] = (),
) -> ChaosRun:
    return ChaosRun(
        asks=[],
        records=list(records),
        cuts=list(cuts),
        seen_faults=list(faults),
        story=story or Story("m"),
        start=0.0,
        end=60.0,
        refused=0,
        resumed=2,
        takeovers=1,
        handed_over=0,
        not_whole=list(not_whole),
        left=list(left),
    )


def judged(run: ChaosRun, right: dict[int, list[int]] | None = None) -> ChaosReport:
    return make_report(run, right or {0: [1, 2, 3]}, seed=1, dtype="float32")


def page(run: ChaosRun) -> str:
    return render_report(judged(run), run, {"gateways": "2", "seed": "1"})


def killed(victim: str, at: float) -> SeenFault:
    return SeenFault(Fault(at, "kill", victim), at, "", victim)


def dead(id: str, at: float) -> LeaseChanged:
    return LeaseChanged(service="worker", id=id, epoch=1, state="dead", reason="ended", at=at)
