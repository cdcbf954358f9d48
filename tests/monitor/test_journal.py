from livescale.services.monitor.journal import Journal
from livescale.services.monitor.verdict import ScalingVerdict
from livescale.shared.messages.scaling import Action, Decision
from tests.monitor.reports import decision


def test_the_journal_keeps_scales_and_what_makes_it_hold() -> None:
    journal = Journal()

    def news(number: int, action: Action, rule: str) -> bool:
        if not journal.is_news(ScalingVerdict("m", action, 1, 1, rule, "why", {})):
            return False
        made = Decision(
            id=f"d-{number}", model="m", at=0.0, action=action, current=1, target=1, rule=rule, reason="", by="monitor"
        )
        journal.add(made)
        return True

    verdicts: list[tuple[Action, str]] = [
        *(("hold", "within"), ("hold", "within"), ("hold", "idle"), ("in", "idle"), ("in", "idle"))
    ]
    told = [news(number, action, rule) for number, (action, rule) in enumerate(verdicts)]
    assert told == [True, False, True, True, True]
    assert [one.id for one in journal.last("m", 2)] == ["d-3", "d-4"]
    assert journal.last("other", 2) == []
    assert journal.last(None, 0) == []


def test_holds_push_no_scale_out_of_the_journal() -> None:
    journal = Journal()
    journal.add(decision(2))
    for _ in range(5_000):
        journal.add(decision(2, "hold"))
    kept = journal.last("m", 10_000)
    assert (len(kept), kept[0].action, kept[-1].action) == (1_001, "out", "hold")
